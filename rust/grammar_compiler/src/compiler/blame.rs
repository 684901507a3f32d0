//! Names the part of a schema that a refusal of a whole grammar is about.
//!
//! ```text
//!  #                    refused for want of ...        each part is compiled alone, as long as one of those
//!  └ #/properties/a     refused for the same reason    below it is refused for the same reason
//!    ├ .../a/items/0    taken
//!    └ .../a/items/1    refused for the same reason    "the schema at #/properties/a/items/1 cannot be ..."
//! ```
//!
//! What makes the schemas fails before it knows where they come from, and only where it fails this is done. At most
//! [`MAX_PARTS`] parts are compiled, of [`MAX_TIMES`] times the size of the whole together.

use json_schema_normal_form::parts;

use crate::lowering::description::Description;
use pyengine_grammar::{Refusal, Verdict, refusal};

/// Parts that are compiled alone.
const MAX_PARTS: usize = 64;
/// Size of all those parts over the size of the whole.
const MAX_TIMES: usize = 4;

/// The refusal with the part that it is about, if there is one that is refused alone.
pub(super) fn placed(
    refused: Refusal,
    description: Description,
    mut compile: impl FnMut(Description) -> Verdict,
) -> Refusal {
    let alone = matches!(description, Description::JsonSchema { .. });
    let mut schemas = Vec::new();
    description.schemas(&mut schemas);
    for schema in schemas.into_iter().take(MAX_PARTS) {
        let reason = if alone { refused.reason.clone() } else { reason(compile(schema.clone())) };
        if let Some(reason) = reason {
            return within(schema, reason, compile);
        }
    }
    refused
}

/// The refusal of a schema for a reason, with the deepest part that is refused for it, too.
fn within(
    mut description: Description,
    reason: String,
    mut compile: impl FnMut(Description) -> Verdict,
) -> Refusal {
    let size = |of: &serde_json::Value| of.to_string().len();
    let (mut compiled, mut bytes, mut budget) = (0, 0, None);
    loop {
        let Description::JsonSchema { schema, part, name, .. } = &description else {
            unreachable!("only schemas are given here")
        };
        let most = *budget.get_or_insert_with(|| MAX_TIMES * size(schema));
        let found = parts(schema, part).into_iter().find_map(|below| {
            compiled += 1;
            bytes += schema.pointer(&below).map_or(0, size);
            if compiled > MAX_PARTS || bytes > most {
                return None;
            }
            let one = description.clone().at(below);
            (self::reason(compile(one.clone())).as_ref() == Some(&reason)).then_some(one)
        });
        match found {
            Some(below) => description = below,
            None => {
                let name = name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
                let message = format!("{name}the schema at #{part} cannot be compiled: {reason}");
                return refusal(message);
            }
        }
    }
}

/// Why a whole was refused, if it was for a reason that names no part.
fn reason(verdict: Verdict) -> Option<String> {
    verdict.err().and_then(|refused| refused.reason)
}
