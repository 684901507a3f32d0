//! The functions that [`crate::dialect`] puts into templates: they bound what fuel alone does not.
//!
//! minijinja charges for a container's own entries, so that one that holds another twice, which holds another twice
//! and so on, costs little and takes for ever to write or compare. Here every container that a template makes is
//! weighed with all that it holds, and every step of a loop looks at the clock.

use std::sync::Arc;
use std::time::Instant;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value, escape_formatter, filters, functions};

use crate::numbers;

/// Deeper values are refused, before they take the stack.
const MAX_DEPTH: usize = 200;
/// The fuel for an entry of a container.
const ENTRY_FUEL: u64 = 2;

/// Adds what does not depend on a rendering.
pub(crate) fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter("_weighed", |state: &State, value: Value| weighed(state, value));
    environment.add_filter("_added", added);
    environment.add_filter("map", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        let made = Value::from(filters::map(state, value, args)?);
        weighed(state, made)
    });
    environment.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        weighed(state, filters::batch(state, value, count, fill)?)
    });
    environment.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        weighed(state, filters::slice(state, value, count, fill)?)
    });
    environment.remove_filter("chain"); // those two are not of jinja2
    environment.remove_filter("zip");
    environment.add_function("dict", |state: &State, value: Option<Value>, entries: Kwargs| {
        weighed(state, functions::dict(value, entries)?)
    });
    environment.add_function("namespace", |state: &State, entries: Option<ValueOrKwargs>| {
        if let Some(entries) = &entries {
            weigh(state, &entries.clone().into_value(), 0)?;
        }
        functions::namespace(entries)
    });
}

/// Adds what looks at the clock.
pub(crate) fn add_clock(environment: &mut Environment<'_>, deadline: Instant) {
    environment.add_filter("_each", move |state: &State, values: &Value| each(state, values, deadline));
    environment.set_formatter(move |output, state, value| {
        check(deadline)?;
        match numbers::float(value) {
            Some(float) => output.write_str(&numbers::repr(float)).map_err(Error::from),
            None => escape_formatter(output, state, value),
        }
    });
}

fn check(deadline: Instant) -> Result<(), Error> {
    if Instant::now() > deadline { Err(Error::from(ErrorKind::OutOfFuel)) } else { Ok(()) }
}

/// Returns a value if there is fuel for all that it holds; a sum of lists as one list.
fn weighed(state: &State, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        weigh(state, &value, 0)?;
        return Ok(value);
    }
    let mut list = Vec::new();
    for entry in value.try_iter()? {
        state.consume_fuel(ENTRY_FUEL)?;
        weigh(state, &entry, 1)?;
        list.push(entry);
    }
    Ok(Value::from(list))
}

fn weigh(state: &State, value: &Value, depth: usize) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {}
        _ => return Ok(()), // paid for when it was made
    }
    if depth > MAX_DEPTH {
        return Err(invalid("a value is too deep"));
    }
    if value.kind() == ValueKind::Map && is_namespace(value) {
        return Err(invalid("a value cannot hold a namespace"));
    }
    let Ok(entries) = value.try_iter() else { return Ok(()) }; // an object that holds nothing
    for entry in entries {
        state.consume_fuel(ENTRY_FUEL)?;
        if value.kind() == ValueKind::Map {
            weigh(state, &value.get_item(&entry)?, depth + 1)?;
        }
        weigh(state, &entry, depth + 1)?;
    }
    Ok(())
}

/// Whether a map's entries can change after it was made.
fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("Namespace"))
}

/// Adds operands of which some are safe text: what is not safe is escaped, as jinja2 does it.
fn added(state: &State, operands: &Value) -> Result<Value, Error> {
    let mut sum: Option<Value> = None;
    for operand in operands.try_iter()? {
        sum = Some(match sum {
            None => operand,
            Some(sum) if sum.as_str().is_none() || operand.as_str().is_none() => {
                return Err(invalid("safe text can be added to text only"));
            }
            Some(sum) if sum.is_safe() || operand.is_safe() => {
                let (start, end) = (escaped(&sum), escaped(&operand));
                state.consume_fuel(((start.len() + end.len()) / 64) as u64)?;
                Value::from_safe_string(start + &end)
            }
            Some(sum) => Value::from(format!("{sum}{operand}")),
        });
    }
    Ok(sum.unwrap_or_default())
}

/// A text as markupsafe escapes it.
fn escaped(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    if value.is_safe() {
        return text.to_owned();
    }
    let pairs = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ("\"", "&#34;")];
    pairs.iter().fold(text.to_owned(), |text, (plain, escaped)| text.replace(plain, escaped))
}

/// The values of a loop.
#[derive(Debug)]
struct Each {
    values: Vec<Value>,
    deadline: Instant,
}

impl Object for Each {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let each = self.clone();
        Enumerator::Iter(Box::new((0..self.values.len()).map(move |index| match check(each.deadline) {
            Ok(()) => each.values[index].clone(),
            Err(error) => Value::from(error),
        })))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.values.len())
    }
}

/// Returns the values of a loop, which look at the clock.
fn each(state: &State, values: &Value, deadline: Instant) -> Result<Value, Error> {
    if values.is_none() {
        return Err(invalid("'NoneType' object is not iterable"));
    }
    let mut listed = Vec::new();
    for value in values.try_iter()? {
        if listed.len() % 64 == 0 {
            state.consume_fuel(32)?;
        }
        listed.push(value);
    }
    Ok(Value::from_object(Each { values: listed, deadline }))
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
