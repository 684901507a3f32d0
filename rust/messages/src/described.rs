//! The description of a message as serde reads it: names and types of its fields, for the test that holds Python's
//! declarations to these.
//!
//! Types are spelled as Python annotates them. A message is "read" from nothing: each value asked for is noted and
//! answered with the simplest one.

use std::collections::BTreeMap;

use pyengine_kernels_cpu::sampler::SamplingRow;
use serde::de::value::Error;
use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// Names and types of a struct's fields, in their order.
pub type Fields = Vec<(&'static str, String)>;

/// A message, or the body of an extension.
#[derive(Debug, Default)]
pub struct Described {
    /// Its type: the name of a struct, or what is made of structs.
    pub spelled: String,
    /// The structs that it is made of, by name.
    pub structs: BTreeMap<&'static str, Fields>,
}

/// Describes `T`.
pub fn describe<'de, T: Deserialize<'de>>() -> Described {
    let mut described = Described::default();
    let Described { spelled, structs } = &mut described;
    T::deserialize(Probe { spelled, structs }).expect("every value asked for is there");
    described
}

/// The bytes of every field that has some: a sampling row takes no others.
static BYTES: SamplingRow = SamplingRow::NEUTRAL;

/// Reads one value.
struct Probe<'a> {
    spelled: &'a mut String,
    structs: &'a mut BTreeMap<&'static str, Fields>,
}

impl Probe<'_> {
    fn is(&mut self, spelled: &str) {
        *self.spelled = spelled.to_owned();
    }
}

/// The methods of a deserializer whose values need no more than a type and a value.
macro_rules! scalars {
    ($($method:ident => $spelled:literal, $visit:ident($value:expr);)*) => {
        $(fn $method<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
            self.is($spelled);
            visitor.$visit($value)
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    scalars! {
        deserialize_bool => "bool", visit_bool(false);
        deserialize_u8 => "int", visit_u8(0);
        deserialize_u32 => "int", visit_u32(0);
        deserialize_u64 => "int", visit_u64(0);
        deserialize_i32 => "int", visit_i32(0);
        deserialize_f32 => "float", visit_f32(0.0);
        deserialize_str => "str", visit_borrowed_str("");
        deserialize_string => "str", visit_borrowed_str("");
        deserialize_bytes => "bytes", visit_borrowed_bytes(BYTES.as_bytes());
        deserialize_byte_buf => "bytes", visit_borrowed_bytes(BYTES.as_bytes());
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Self { spelled, structs } = self;
        let value = visitor.visit_some(Probe { spelled: &mut *spelled, structs });
        spelled.push_str(" | None");
        value
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Self { spelled, structs } = self;
        let mut items = Vec::new();
        let value = visitor.visit_seq(Items { items: &mut items, left: 1, structs });
        *spelled = format!("list[{}]", items.concat());
        value
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        let Self { spelled, structs } = self;
        let mut items = Vec::new();
        let value = visitor.visit_seq(Items { items: &mut items, left: len, structs });
        *spelled = format!("tuple[{}]", items.join(", "));
        value
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let Self { spelled, structs } = self;
        let mut items = Vec::new();
        let value = visitor.visit_map(Items { items: &mut items, left: 1, structs });
        *spelled = format!("dict[{}]", items.join(", "));
        value
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.is(name);
        let mut items = Vec::new();
        let value = visitor.visit_seq(Items { items: &mut items, left: fields.len(), structs: self.structs });
        self.structs.insert(name, fields.iter().copied().zip(items).collect());
        value
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.is(&format!("Literal['{}']", variants.join("', '")));
        visitor.visit_enum(variants[0].into_deserializer())
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        unimplemented!("messages have no values of such a type")
    }

    forward_to_deserialize_any! {
        i8 i16 i64 i128 u16 u128 f64 char unit unit_struct identifier ignored_any
    }
}

/// Reads `left` values, whose types become `items`.
struct Items<'a> {
    items: &'a mut Vec<String>,
    left: usize,
    structs: &'a mut BTreeMap<&'static str, Fields>,
}

impl Items<'_> {
    fn read<'de, T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let mut spelled = String::new();
        let value = seed.deserialize(Probe { spelled: &mut spelled, structs: self.structs });
        self.items.push(spelled);
        value
    }
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        self.read(seed).map(Some)
    }
}

impl<'de> MapAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        self.read(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FinishReason, RequestKey, Submit};

    #[test]
    fn a_description_has_the_fields_as_they_are_read() {
        let described = describe::<(RequestKey, Option<FinishReason>, Vec<(u32, f32)>)>();
        let finish = "Literal['stop', 'length', 'abort', 'timeout', 'overloaded', 'error', 'refused'] | None";
        assert_eq!(described.spelled, format!("tuple[RequestKey, {finish}, list[tuple[int, float]]]"));
        let key = [("frontend", "int".to_owned()), ("request", "int".to_owned())];
        assert_eq!(described.structs["RequestKey"], key);
        let submit = &describe::<Submit>().structs["Submit"];
        assert_eq!(submit[0], ("key", "RequestKey".to_owned()));
        assert!(submit.contains(&("tokens", "bytes".to_owned())));
        assert_eq!(submit.last().unwrap(), &("extensions", "dict[str, bytes]".to_owned()));
    }
}
