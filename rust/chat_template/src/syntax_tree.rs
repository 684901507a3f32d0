//! A walk over the syntax tree of a template.

use minijinja::machinery::ast::{CallArg, Expr, Macro, Stmt};

/// A node of the tree.
#[derive(Clone, Copy)]
pub(crate) enum Node<'a> {
    Stmt(&'a Stmt<'a>),
    Expr(&'a Expr<'a>),
}

impl<'a> Node<'a> {
    /// Returns the node and all below it, in the order of the source.
    pub(crate) fn all(self) -> Vec<Node<'a>> {
        let mut found = Vec::new();
        let mut open = vec![self];
        while let Some(node) = open.pop() {
            found.push(node);
            let below = match node {
                Node::Stmt(statement) => below_statement(statement),
                Node::Expr(expression) => below_expression(expression),
            };
            open.extend(below.into_iter().rev());
        }
        found
    }
}

fn below_statement<'a>(statement: &'a Stmt<'a>) -> Vec<Node<'a>> {
    match statement {
        Stmt::Template(it) => statements(&it.children),
        Stmt::EmitExpr(it) => vec![Node::Expr(&it.expr)],
        Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Vec::new(),
        Stmt::ForLoop(it) => {
            let head = [&it.target, &it.iter].into_iter().chain(&it.filter_expr).map(Node::Expr);
            head.chain(statements(&it.body)).chain(statements(&it.else_body)).collect()
        }
        Stmt::IfCond(it) => {
            let bodies = it.true_body.iter().chain(&it.false_body).map(Node::Stmt);
            std::iter::once(Node::Expr(&it.expr)).chain(bodies).collect()
        }
        Stmt::WithBlock(it) => {
            let head =
                it.assignments.iter().flat_map(|(target, value)| [Node::Expr(target), Node::Expr(value)]);
            head.chain(statements(&it.body)).collect()
        }
        Stmt::Set(it) => vec![Node::Expr(&it.target), Node::Expr(&it.expr)],
        Stmt::SetBlock(it) => {
            let head = std::iter::once(&it.target).chain(&it.filter).map(Node::Expr);
            head.chain(statements(&it.body)).collect()
        }
        Stmt::AutoEscape(it) => {
            std::iter::once(Node::Expr(&it.enabled)).chain(statements(&it.body)).collect()
        }
        Stmt::FilterBlock(it) => {
            std::iter::once(Node::Expr(&it.filter)).chain(statements(&it.body)).collect()
        }
        Stmt::Macro(it) => below_macro(it),
        Stmt::CallBlock(it) => {
            let call = std::iter::once(Node::Expr(&it.call.expr)).chain(arguments(&it.call.args));
            call.chain(below_macro(&it.macro_decl)).collect()
        }
        Stmt::Do(it) => std::iter::once(Node::Expr(&it.call.expr)).chain(arguments(&it.call.args)).collect(),
    }
}

fn below_macro<'a>(it: &'a Macro<'a>) -> Vec<Node<'a>> {
    it.args.iter().chain(&it.defaults).map(Node::Expr).chain(statements(&it.body)).collect()
}

fn below_expression<'a>(expression: &'a Expr<'a>) -> Vec<Node<'a>> {
    match expression {
        Expr::Var(_) | Expr::Const(_) => Vec::new(),
        Expr::Slice(it) => {
            let bounds = it.start.iter().chain(&it.stop).chain(&it.step);
            std::iter::once(&it.expr).chain(bounds).map(Node::Expr).collect()
        }
        Expr::UnaryOp(it) => vec![Node::Expr(&it.expr)],
        Expr::BinOp(it) => vec![Node::Expr(&it.left), Node::Expr(&it.right)],
        Expr::Compare(it) => {
            std::iter::once(&it.expr).chain(it.ops.iter().map(|op| &op.expr)).map(Node::Expr).collect()
        }
        Expr::IfExpr(it) => {
            let branches = [&it.test_expr, &it.true_expr];
            branches.into_iter().chain(&it.false_expr).map(Node::Expr).collect()
        }
        Expr::Filter(it) => it.expr.iter().map(Node::Expr).chain(arguments(&it.args)).collect(),
        Expr::Test(it) => std::iter::once(Node::Expr(&it.expr)).chain(arguments(&it.args)).collect(),
        Expr::GetAttr(it) => vec![Node::Expr(&it.expr)],
        Expr::GetItem(it) => vec![Node::Expr(&it.expr), Node::Expr(&it.subscript_expr)],
        Expr::Call(it) => std::iter::once(Node::Expr(&it.expr)).chain(arguments(&it.args)).collect(),
        Expr::List(it) => it.items.iter().map(Node::Expr).collect(),
        Expr::Tuple(it) => it.items.iter().map(Node::Expr).collect(),
        Expr::Map(it) => it.keys.iter().chain(&it.values).map(Node::Expr).collect(),
    }
}

fn statements<'a>(statements: &'a [Stmt<'a>]) -> Vec<Node<'a>> {
    statements.iter().map(Node::Stmt).collect()
}

fn arguments<'a>(arguments: &'a [CallArg<'a>]) -> impl Iterator<Item = Node<'a>> {
    arguments.iter().map(|argument| match argument {
        CallArg::Pos(value)
        | CallArg::Kwarg(_, value)
        | CallArg::PosSplat(value)
        | CallArg::KwargSplat(value) => Node::Expr(value),
    })
}
