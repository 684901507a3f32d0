//! What a template reads: the keys of messages, variables, and the texts that it looks for.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, Expr, Stmt};
use minijinja::machinery::parse;
use minijinja::{Environment, Error};

use crate::syntax_tree::Node;

/// The variables and fields that a template reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads {
    /// The keys of a message.
    pub message_keys: BTreeSet<String>,
    /// The variables, from outside the template; those too that it asks about before it sets a default.
    pub variables: BTreeSet<String>,
    /// The texts that it compares with others, or gives to methods of texts.
    pub sought: BTreeSet<String>,
}

impl Reads {
    /// Reads a template. O(length of the source × depth of its assignments).
    pub(crate) fn of(source: &str) -> Result<Self, Error> {
        let tree = parse(source, crate::NAME, Default::default())?;
        let nodes = Node::Stmt(&tree).all();
        let mut variables: BTreeSet<String> =
            Environment::empty().template_from_str(source)?.undeclared_variables(false).into_iter().collect();
        variables.extend(never_set(&nodes).into_iter().map(str::to_owned)); // minijinja passes over slices
        variables.extend(nodes.iter().filter_map(asked_about).map(str::to_owned));
        Ok(Self { message_keys: message_keys(&nodes), variables, sought: sought(&nodes) })
    }
}

/// The names that the template reads and never sets.
fn never_set<'a>(nodes: &[Node<'a>]) -> BTreeSet<&'a str> {
    let mut read = BTreeSet::new();
    let mut set = BTreeSet::from(["loop", "caller"]);
    for node in nodes {
        match node {
            Node::Expr(Expr::Var(it)) => drop(read.insert(it.id)),
            Node::Stmt(Stmt::ForLoop(it)) => set.extend(names(&it.target)),
            Node::Stmt(Stmt::Set(it)) => set.extend(names(&it.target)),
            Node::Stmt(Stmt::SetBlock(it)) => set.extend(names(&it.target)),
            Node::Stmt(Stmt::WithBlock(it)) => set.extend(it.assignments.iter().flat_map(|(a, _)| names(a))),
            Node::Stmt(Stmt::CallBlock(it)) => set.extend(it.macro_decl.args.iter().flat_map(names)),
            Node::Stmt(Stmt::Macro(it)) => {
                set.insert(it.name);
                set.extend(it.args.iter().flat_map(names));
            }
            _ => {}
        }
    }
    &read - &set
}

/// The variable that a test `is defined` or `is undefined` is about.
fn asked_about<'a>(node: &Node<'a>) -> Option<&'a str> {
    match node {
        Node::Expr(Expr::Test(test)) if matches!(test.name, "defined" | "undefined") => match &test.expr {
            Expr::Var(variable) => Some(variable.id),
            _ => None,
        },
        _ => None,
    }
}

fn sought(nodes: &[Node<'_>]) -> BTreeSet<String> {
    let mut places: Vec<&Expr<'_>> = Vec::new();
    for node in nodes {
        match node {
            Node::Expr(it @ Expr::Compare(_)) => places.push(it),
            Node::Expr(it @ Expr::BinOp(operation)) if compares(operation.op) => places.push(it),
            Node::Expr(Expr::Call(call)) if matches!(call.expr, Expr::GetAttr(_)) => {
                places.extend(positional(call));
            }
            _ => {}
        }
    }
    let below = places.into_iter().flat_map(|place| Node::Expr(place).all());
    below
        .filter_map(|node| if let Node::Expr(it) = node { text_of(it) } else { None })
        .map(str::to_owned)
        .collect()
}

/// Which keys of a message a template reads.
///
/// Names that hold messages are followed through assignments and loops until no new one is found; then every
/// `name.key`, `name['key']` and `'key' in name` over them counts. A name that holds something else in another place
/// counts too: better a key too many than one refused wrongly.
fn message_keys(nodes: &[Node<'_>]) -> BTreeSet<String> {
    let bindings = bindings(nodes);
    let mut holders = BTreeSet::from(["messages"]);
    loop {
        let before = holders.len();
        for (target, source) in &bindings {
            if base_name(source).is_some_and(|name| holders.contains(name)) {
                holders.extend(names(target));
            }
        }
        if holders.len() == before {
            break;
        }
    }
    let holds = |source: &Expr<'_>| base_name(source).is_some_and(|name| holders.contains(name));
    let mut keys = BTreeSet::new();
    for node in nodes {
        let Node::Expr(expression) = node else { continue };
        let key = match expression {
            Expr::GetAttr(it) if holds(&it.expr) => Some(it.name),
            Expr::GetItem(it) if holds(&it.expr) => text_of(&it.subscript_expr),
            Expr::BinOp(it) if compares(it.op) && holds(&it.right) => text_of(&it.left),
            Expr::Compare(it) if it.ops.first().is_some_and(|op| holds(&op.expr)) => text_of(&it.expr),
            Expr::Call(call) => match &call.expr {
                Expr::GetAttr(it) if it.name == "get" && holds(&it.expr) => {
                    positional(call).next().and_then(text_of)
                }
                _ => None,
            },
            _ => None,
        };
        keys.extend(key.map(str::to_owned));
    }
    keys
}

/// (target, source) of everything that gives a value a name: loops, assignments, macro calls.
fn bindings<'a>(nodes: &[Node<'a>]) -> Vec<(&'a Expr<'a>, &'a Expr<'a>)> {
    let mut pairs = Vec::new();
    for node in nodes {
        match node {
            Node::Stmt(Stmt::ForLoop(it)) => pairs.push((&it.target, &it.iter)),
            Node::Stmt(Stmt::Set(it)) => pairs.push((&it.target, &it.expr)),
            Node::Stmt(Stmt::WithBlock(it)) => pairs.extend(it.assignments.iter().map(|(a, b)| (a, b))),
            Node::Stmt(Stmt::Macro(it)) => {
                for call in nodes.iter().filter_map(|node| called(node, it.name)) {
                    pairs.extend(it.args.iter().zip(positional(call)));
                }
            }
            _ => {}
        }
    }
    pairs
}

/// The call of a macro that a node is.
fn called<'a>(node: &Node<'a>, name: &str) -> Option<&'a Call<'a>> {
    match node {
        Node::Expr(Expr::Call(call)) if matches!(&call.expr, Expr::Var(it) if it.id == name) => Some(call),
        _ => None,
    }
}

fn positional<'a>(call: &'a Call<'a>) -> impl Iterator<Item = &'a Expr<'a>> {
    call.args
        .iter()
        .filter_map(|argument| if let CallArg::Pos(value) = argument { Some(value) } else { None })
}

/// The names that a target sets; none for an attribute of a namespace.
fn names<'a>(target: &'a Expr<'a>) -> Vec<&'a str> {
    match target {
        Expr::Var(it) => vec![it.id],
        Expr::List(it) => it.items.iter().flat_map(names).collect(),
        Expr::Tuple(it) => it.items.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}

/// `messages` for `messages`, `messages[1:]`, `messages | reverse` and the like.
fn base_name<'a>(mut node: &'a Expr<'a>) -> Option<&'a str> {
    loop {
        node = match node {
            Expr::Var(it) => return Some(it.id),
            Expr::GetItem(it) if text_of(&it.subscript_expr).is_some() => return None, // a part of a message
            Expr::GetItem(it) => &it.expr,
            Expr::Slice(it) => &it.expr,
            Expr::Filter(it) => it.expr.as_ref()?,
            Expr::IfExpr(it) => &it.true_expr,
            Expr::BinOp(it) if matches!(it.op, BinOpKind::Add) => &it.left,
            _ => return None,
        }
    }
}

fn text_of<'a>(expression: &'a Expr<'a>) -> Option<&'a str> {
    if let Expr::Const(it) = expression { it.value.as_str() } else { None }
}

fn compares(operation: BinOpKind) -> bool {
    use BinOpKind::{Eq, Gt, Gte, In, Lt, Lte, Ne};
    matches!(operation, Eq | Ne | Lt | Lte | Gt | Gte | In)
}
