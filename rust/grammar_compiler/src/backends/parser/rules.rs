//! The rules of a grammar that llguidance has compiled, laid out for the parser.
//!
//! ```text
//!  elements   A: B x      ─┬─ B │ x │ end        an item is a place among them: its dot
//!             A: y         └─ y │ end
//! ```
//!
//! O(grammar).

use llguidance::earley::{CGrammar, CSymIdx, ParamCond, ParamExpr};
use rustc_hash::FxHashMap;

use crate::lowering::lark::DIFFERENT_ITEM;

/// The place behind the last element of a rule.
pub(super) const END: u32 = u32::MAX;

/// A symbol of the grammar.
#[derive(Debug, Default)]
pub(super) struct Symbol {
    /// The lexeme, of a terminal.
    pub lexeme: Option<u32>,
    /// The symbol may be empty, ...
    pub nullable: bool,
    /// ... or may be where its parameter fulfils one of these.
    pub nullable_if: Vec<ParamCond>,
    /// Its one rule is a grammar with lexemes and white space of its own, of this class.
    pub nested: Option<usize>,
    /// The symbol is an item of an array of different items.
    pub is_item: bool,
    /// The first places of its rules, each with its condition.
    pub rules: Vec<(u32, ParamCond)>,
}

/// A place in a rule.
#[derive(Debug)]
pub(super) struct Element {
    /// The symbol behind the dot, or [`END`].
    pub symbol: u32,
    /// The symbol whose rule this is.
    pub of: u32,
    /// The symbol's parameter.
    pub parameter: ParamExpr,
}

/// All rules that the start symbol needs.
#[derive(Debug)]
pub(super) struct Rules {
    pub symbols: Vec<Symbol>,
    pub elements: Vec<Element>,
    /// Whether symbols have parameters.
    pub parametric: bool,
    /// Whether there are arrays of different items, whose values are remembered.
    pub remembers: bool,
}

/// The start symbol.
pub(super) const START: u32 = 0;

impl Rules {
    pub fn new(grammar: &CGrammar) -> Self {
        let mut rules = Self {
            symbols: Vec::new(),
            elements: Vec::new(),
            parametric: grammar.parametric(),
            remembers: false,
        };
        let mut known: FxHashMap<usize, u32> = FxHashMap::default();
        let mut order = Vec::new();
        let mut number = |symbol: CSymIdx, order: &mut Vec<CSymIdx>| {
            *known.entry(symbol.as_index()).or_insert_with(|| {
                order.push(symbol);
                order.len() as u32 - 1
            })
        };
        number(grammar.start(), &mut order);
        let mut at = 0;
        while let Some(symbol) = order.get(at).copied() {
            let data = grammar.sym_data(symbol);
            let mut made = Symbol {
                lexeme: data.lexeme.map(|lexeme| lexeme.0),
                nullable: data.is_nullable,
                nullable_if: data.cond_nullable.clone(),
                is_item: data.props.capture_name.as_deref() == Some(DIFFERENT_ITEM),
                ..Symbol::default()
            };
            for (rule, condition) in data.rules.iter().zip(&data.rules_cond) {
                made.rules.push((rules.elements.len() as u32, condition.clone()));
                let (symbols, parameters, _) = grammar.rule_rhs(*rule);
                for (symbol, parameter) in symbols.iter().zip(parameters) {
                    let symbol = number(*symbol, &mut order);
                    rules.elements.push(Element { symbol, of: at as u32, parameter: parameter.clone() });
                }
                rules.elements.push(Element { symbol: END, of: at as u32, parameter: ParamExpr::Null });
                if data.gen_grammar.is_some() {
                    made.nested =
                        symbols.first().map(|root| grammar.sym_data(*root).props.grammar_id.as_usize());
                }
            }
            rules.remembers |= made.is_item;
            rules.symbols.push(made);
            at += 1;
        }
        rules
    }

    /// The symbol behind a dot; None at the end of a rule.
    pub fn behind(&self, place: u32) -> Option<&Symbol> {
        self.symbols.get(self.elements[place as usize].symbol as usize)
    }

    /// The elements of a rule from a place on.
    pub fn of(&self, place: u32) -> &[Element] {
        let rest = &self.elements[place as usize..];
        &rest[..rest.iter().position(|element| element.symbol == END).unwrap_or(rest.len())]
    }

    /// About how many bytes it holds.
    pub fn memory(&self) -> usize {
        self.elements.len() * size_of::<Element>() + self.symbols.len() * 2 * size_of::<Symbol>()
    }
}
