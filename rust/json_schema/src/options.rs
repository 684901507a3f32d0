//! How a schema is rewritten, and how much work that may take.

/// What is done with a keyword that has no exact form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unenforceable {
    /// The schema is refused.
    #[default]
    Refuse,
    /// The keyword is left out, which allows more values, and a warning names it.
    Ignore,
}

/// What the compiler of the result takes beyond the [normal form](crate#the-normal-form).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Compiler {
    /// Numbers whose text has a `pattern`: those that are not whole or no multiples, and bounds that a double rounds.
    pub texts: bool,
    /// `uniqueItems`, where no item may begin when no value is left for it.
    pub distinct: bool,
    /// `propertyNames` beside `additionalProperties`, where one pattern of all other names would be too long.
    pub names: bool,
    /// Keys come in any order; the most properties of an object, others that must come counted as one.
    pub any_order: Option<usize>,
    /// The compiler does not exclude the names in `properties` from `patternProperties` itself, save from the pattern of all names.
    pub names_apart: bool,
}

/// Bounds on the work and the memory of one call; a schema beyond one of them is refused as
/// [too large](crate::Refusal::TooLarge). The defaults hold one call to about a second and some 100 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How many subschemas the document may have.
    pub schemas: usize,
    /// How many bytes the JSON pointers of all subschemas may have together.
    pub pointer_bytes: usize,
    /// How deep subschemas may be nested in the document.
    pub depth: usize,
    /// Steps of work.
    pub steps: u64,
    /// Derivatives of regular expressions, the steps by which patterns and names are compared.
    pub derivatives: u64,
    /// Expressions kept, of schemas and of patterns together.
    pub expressions: usize,
    /// How many cases one schema may multiply out to for one type of value.
    pub cases: usize,
    /// How many different schemas the result may have.
    pub states: usize,
    /// How many properties an object of the result may have.
    pub properties: usize,
    /// How many optional ones may come without a required one between them.
    pub optional: usize,
    /// How deep the schemas of the result may be nested: compilers follow them by recursion.
    pub result_depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            schemas: 200_000,
            pointer_bytes: 32 << 20,
            depth: 120,
            steps: 3_000_000,
            derivatives: 2_000_000,
            expressions: 1_000_000,
            cases: 1_000,
            states: 20_000,
            properties: 5_000,
            optional: 1_900,
            result_depth: 100,
        }
    }
}

/// How a schema is rewritten.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// What is done with a keyword that has no exact form.
    pub unenforceable: Unenforceable,
    /// What the compiler of the result takes beyond the [normal form](crate#the-normal-form).
    pub compiler: Compiler,
    /// Bounds on work and memory.
    pub limits: Limits,
    /// The JSON pointer of the part of the schema that is rewritten; the whole where it is empty.
    pub part: &'a str,
    /// Asked every few hundred steps; true ends the call with [`Refusal::Cancelled`](crate::Refusal::Cancelled).
    pub cancelled: &'a dyn Fn() -> bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            unenforceable: Unenforceable::default(),
            compiler: Compiler::default(),
            limits: Limits::default(),
            part: "",
            cancelled: &|| false,
        }
    }
}
