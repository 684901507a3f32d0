//! Arrays of different items (`uniqueItems`): no value comes twice in them.
//!
//! ```text
//!  unlike   unused    what an item may still become       the shortest item that has not come
//!           texts                                         the shortest texts
//!  memory             the values that have come, and the item that has begun
//!     values          read from texts, and compared
//! ```

pub(super) mod memory;
pub(super) mod texts;
pub(super) mod unlike;
pub(super) mod unused;
pub(super) mod values;
