//! Extensions of a message: the parts of it that belong to features, by tag.
//!
//! ```text
//!   Submit { key, tokens, ..., extensions: {"grammar": bytes, "pooling": bytes} }
//!                                            └─ the body of one feature: the msgpack array of its fields
//! ```
//!
//! A feature declares its body beside itself, with the tag, and lists it as an [`ExtensionKind`]. So a message carries
//! what a feature needs without knowing the feature, and a tag that is in no list is an error with its name.
//!
//! What a feature gives back goes the same way, as [`Extra`]s: from the scheduler one by one, to a frontend in the order
//! in which they came.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::described::{Described, describe};
use pyengine_base::error::{Error, Result};

/// The part of a message that belongs to one feature.
pub trait Extension: Serialize + DeserializeOwned {
    /// Names the part within its message.
    const TAG: &'static str;
}

/// The extensions of one message, encoded. Nothing is allocated where there are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Extensions(BTreeMap<String, ByteBuf>);

impl Extensions {
    /// Whether the message has this extension.
    pub fn has<T: Extension>(&self) -> bool {
        self.0.contains_key(T::TAG)
    }

    /// The extension, if the message has it. `InvalidArgument` names one that cannot be read.
    pub fn get<T: Extension>(&self) -> Result<Option<T>> {
        let Some(body) = self.0.get(T::TAG) else { return Ok(None) };
        rmp_serde::from_slice(body).map(Some).map_err(|error| {
            Error::InvalidArgument(format!("the extension '{}' is malformed: {error}", T::TAG))
        })
    }

    /// Adds an extension, or replaces it.
    pub fn set<T: Extension>(&mut self, body: &T) -> Result<()> {
        let body = rmp_serde::to_vec(body).map_err(|error| Error::MalformedMessage(error.to_string()))?;
        self.0.insert(T::TAG.to_owned(), ByteBuf::from(body));
        Ok(())
    }

    /// `InvalidArgument` names an extension that is not among the `known` ones.
    pub fn check<'a>(&self, known: impl Iterator<Item = &'a ExtensionKind> + Clone) -> Result<()> {
        let unknown = |tag: &&String| known.clone().all(|kind| kind.tag != tag.as_str());
        match self.0.keys().find(unknown) {
            Some(tag) => Err(Error::InvalidArgument(format!("there is no extension '{tag}'"))),
            None => Ok(()),
        }
    }
}

/// What a feature gives back with an answer: the body of an extension, with its tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Extra(pub String, #[serde(with = "serde_bytes")] pub Vec<u8>);

impl Extra {
    /// Encodes a body.
    pub fn of<T: Extension>(body: &T) -> Result<Self> {
        let bytes = rmp_serde::to_vec(body).map_err(|error| Error::MalformedMessage(error.to_string()))?;
        Ok(Self(T::TAG.to_owned(), bytes))
    }

    /// The body, if it is of this kind. `InvalidArgument` names one that cannot be read.
    pub fn get<T: Extension>(&self) -> Result<Option<T>> {
        if self.0 != T::TAG {
            return Ok(None);
        }
        let malformed =
            |error| Error::InvalidArgument(format!("the extra '{}' is malformed: {error}", T::TAG));
        rmp_serde::from_slice(&self.1).map(Some).map_err(malformed)
    }

    /// Bytes of its tag and body.
    pub fn size(&self) -> usize {
        self.0.len() + self.1.len()
    }
}

/// One kind of extension: an entry of a list of those that an actor takes.
#[derive(Debug, Clone, Copy)]
pub struct ExtensionKind {
    /// The tag of the extension.
    pub tag: &'static str,
    /// Describes the fields of its body.
    pub describe: fn() -> Described,
}

impl ExtensionKind {
    /// The entry of `T`.
    pub const fn of<T: Extension>() -> Self {
        Self { tag: T::TAG, describe: describe::<T> }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Colour {
        name: String,
    }

    impl Extension for Colour {
        const TAG: &'static str = "colour";
    }

    #[test]
    fn an_extension_is_read_as_it_was_set() {
        let mut extensions = Extensions::default();
        assert_eq!(extensions.get::<Colour>().unwrap(), None);
        extensions.set(&Colour { name: "red".into() }).unwrap();
        assert!(extensions.has::<Colour>());
        assert_eq!(extensions.get().unwrap(), Some(Colour { name: "red".into() }));
        assert_eq!(extensions.check([ExtensionKind::of::<Colour>()].iter()), Ok(()));
    }

    #[test]
    fn unknown_and_malformed_extensions_are_refused_by_name() {
        let malformed = Extensions([("colour".to_owned(), ByteBuf::from(b"\x91\x07"))].into());
        for refused in [malformed.get::<Colour>().map(drop), malformed.check([].iter())] {
            assert!(matches!(refused, Err(Error::InvalidArgument(why)) if why.contains("'colour'")));
        }
    }
}
