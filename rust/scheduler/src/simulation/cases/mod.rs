//! One case for each promise of the planner.

mod ends;
mod mailboxes;
mod penalties;
mod preemption;
mod prompts;
mod results;
mod scores;
mod states;

use super::random::{Event, happen};
use super::world::World;
use pyengine_messages::RequestKey;

/// Runs steps until `done`; each is drained, planned and, one behind, committed.
fn steps(world: &mut World, most: usize, mut done: impl FnMut(&World) -> bool) {
    for _ in 0..most {
        if done(world) {
            return;
        }
        happen(world, &Event::Step);
        world.read();
    }
    panic!("not done after {most} steps: {:?}", world.planner.stats());
}

fn finished(key: RequestKey) -> impl Fn(&World) -> bool {
    move |world| world.streams.get(&key).is_some_and(|stream| stream.finish.is_some())
}
