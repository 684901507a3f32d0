//! Arrays of different items (`uniqueItems`): no value comes twice in them.
//!
//! ```text
//!  unlike   unused    what an item may still become       the shortest texts that have not come
//!  memory             the values that have come, and the item that has begun
//!     values          read from texts, and compared
//! ```

pub(super) mod memory;
pub(super) mod unlike;
pub(super) mod unused;
pub(super) mod values;
