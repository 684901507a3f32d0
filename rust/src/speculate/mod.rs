//! Drafts of what may come next, and how long they should be.
