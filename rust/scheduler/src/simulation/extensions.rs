//! The extensions of features in a request of the simulation.

use pyengine_messages::{Extension, Submit};

/// Asks for a feature in `submit`.
pub(super) fn ask<T: Extension>(submit: &mut Submit, body: &T) {
    submit.extensions.set(body).unwrap();
}

/// What `submit` asks of a feature.
pub(super) fn asked<T: Extension>(submit: &Submit) -> Option<T> {
    submit.extensions.get().unwrap()
}
