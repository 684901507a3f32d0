//! The planner held to a model of the device, under random work.
//!
//! The model keeps, for each slot of the KV cache, a chain hash of the token prefix whose KV was written there.
//! A step computes what a real one would: it reads nothing but the buffers, takes fed tokens from `last_token`,
//! writes each token's chain into its slot, and then *reads the row's pages*: they must hold exactly the row's
//! own prefix, token by token, written under the row's own salt. The next token is a hash of that prefix, of the
//! seed, of the position and of its penalties, so that any wrong page, position or feed changes the output, and the output that
//! each request must have can be computed without any scheduler. Where layers have states, a state is such a chain, too, and
//! tokens are hashes of it: one that is restored from elsewhere, or takes in a wrong draft, changes the output.

mod cases;
mod device;
mod expected;
mod extensions;
mod grammar;
mod model;
mod outcome;
mod penalties;
mod random;
mod row;
mod sampling;
mod setup;
mod sharing;
mod states;
mod streams;
mod verify;
mod world;
