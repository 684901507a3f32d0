//! The environment that transformers gives to chat templates.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use crate::{filters, metering, methods};

/// What a template said when it refused its messages.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Returns how templates are read: blocks take the line that they stand on.
pub(crate) fn syntax() -> SyntaxConfig {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default()
}

/// Returns an environment without a template.
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_debug(false);
    environment.set_unknown_method_callback(methods::call);
    minijinja_contrib::add_to_environment(&mut environment);
    metering::add_to(&mut environment);
    environment.remove_global("debug");
    environment.remove_global("cycler"); // another one than that of jinja2
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", filters::tojson);
    environment.add_filter("string", filters::string);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("center", filters::center);
    environment.add_filter("format", filters::format);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
    environment
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let refusal = Refusal(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "the template refuses").with_source(refusal))
}
