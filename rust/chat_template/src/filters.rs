//! Filters that differ from minijinja's own.

use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use crate::json::{self, Layout};
use crate::{methods, numbers, widths};

/// JSON as transformers writes it: not escaped for HTML, with the arguments of Python's `json.dumps`.
pub(crate) fn tojson(
    state: &State,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let argument = |place: usize, name| match positional.get(place) {
        Some(value) => Ok(value.clone()),
        None => Ok::<_, Error>(named.get::<Option<Value>>(name)?.unwrap_or_default()),
    };
    let layout = Layout::new(
        argument(0, "ensure_ascii")?.is_true(),
        &argument(1, "indent")?,
        &argument(2, "separators")?,
        argument(3, "sort_keys")?.is_true(),
    )?;
    named.assert_all_used()?;
    json::dump(state, value, &layout)
}

/// The text of a value as Python writes it.
pub(crate) fn string(value: Value) -> Value {
    match numbers::float(&value) {
        Some(float) => Value::from(numbers::repr(float)),
        None if value.as_str().is_some() => value,
        None => Value::from(value.to_string()),
    }
}

/// Text without what stands around it.
pub(crate) fn trim(value: &Value, characters: Option<&str>) -> String {
    methods::stripped(&value.to_string(), characters, true, true).into()
}

/// Text in the middle of a line.
pub(crate) fn center(state: &State, text: &str, width: Option<usize>) -> Result<Value, Error> {
    methods::call_text(state, text, "center", &[Value::from(width.unwrap_or(80))])
        .unwrap_or_else(|| Err(Error::from(ErrorKind::UnknownMethod)))
}

/// Text by a format in the style of `printf`.
pub(crate) fn format(state: &mut State, layout: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    widths::check_directives(layout.as_str().unwrap_or_default())?;
    minijinja::filters::format(state, layout, args)
}
