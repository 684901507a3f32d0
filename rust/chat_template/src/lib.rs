//! Chat templates: the jinja programs that come with models, rendered as transformers renders them.
//!
//! A template is untrusted: a model's publisher wrote it, and it reads what clients send. Fuel bounds its work and
//! its memory together (an instruction costs one, and so do 64 bytes that it makes), the length of its output has a
//! bound of its own, and it reaches nothing but the variables that it is given.

mod dialect;
mod environment;
mod filters;
mod json;
mod metering;
mod methods;
mod numbers;
mod reads;
mod strftime;
mod syntax_tree;
mod widths;

use std::io;
use std::time::{Duration, Instant};

use minijinja::{Environment, ErrorKind, context};

pub use minijinja::Value;
pub use numbers::big_integer;
pub use reads::Reads;

/// The name of the one template of an environment.
const NAME: &str = "chat_template";
/// The work of a second: this many instructions, or 64 bytes each, 256 MB in all. On two slow cores it takes half a
/// second; ordinary templates burn some 500 for a message.
const FUEL_PER_SECOND: f64 = 4_000_000.0;

/// Why a template did not compile or render.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The source is no template.
    Malformed {
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template called `raise_exception` with this message.
    Refused(String),
    /// The template needs more time, or more fuel, than it has.
    OutOfFuel,
    /// The output is longer than it may be.
    TooLong,
    /// The template failed on its variables.
    Failed(String),
}

/// The bounds of one rendering.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long the template may work.
    pub seconds: f64,
    /// The longest output.
    pub max_characters: usize,
}

/// A compiled template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    reads: Reads,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`].
    pub fn compile(source: &str) -> Result<Self, Error> {
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let source = dialect::rewritten(&source).map_err(|error| malformed(&error))?;
        let reads = Reads::of(&source).map_err(|error| malformed(&error))?;
        let mut environment = environment::environment();
        environment.add_template_owned(NAME, source).map_err(|error| malformed(&error))?;
        Ok(Self { environment, reads })
    }

    /// Returns what the template reads of its variables.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Renders the template.
    ///
    /// # Errors
    ///
    /// All but [`Error::Malformed`].
    pub fn render(&self, variables: Value, limits: Limits) -> Result<String, Error> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some((limits.seconds * FUEL_PER_SECOND) as u64));
        let deadline = Instant::now() + Duration::from_secs_f64(limits.seconds);
        metering::add_clock(&mut environment, deadline);
        environment.add_function("strftime_now", strftime::now);
        let template = environment.get_template(NAME).map_err(|error| failed(&error))?;
        let mut output =
            Output { text: Vec::new(), characters_left: limits.max_characters, is_too_long: false };
        match template.render_captured_to(context! { ..variables }, &mut output) {
            _ if output.is_too_long => Err(Error::TooLong),
            Ok(_) => String::from_utf8(output.text).map_err(|error| Error::Failed(error.to_string())),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// Collects what a template writes, up to a number of characters.
struct Output {
    text: Vec<u8>,
    characters_left: usize,
    is_too_long: bool,
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A character's first byte is no continuation byte.
        let characters = bytes.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        match self.characters_left.checked_sub(characters) {
            Some(left) => self.characters_left = left,
            None => {
                self.is_too_long = true;
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn malformed(error: &minijinja::Error) -> Error {
    Error::Malformed { line: error.line().unwrap_or(1), message: described(error) }
}

fn failed(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(each) = cause {
        if let Some(refusal) = each.downcast_ref::<environment::Refusal>() {
            return Error::Refused(refusal.0.clone());
        }
        if each.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return Error::OutOfFuel;
        }
        cause = each.source();
    }
    let place = error.line().map(|line| format!(" in line {line}")).unwrap_or_default();
    Error::Failed(described(error) + &place)
}

/// What went wrong, without the template's name.
fn described(error: &minijinja::Error) -> String {
    let kind = error.kind().to_string();
    error.detail().map_or(kind.clone(), |detail| format!("{kind}: {detail}"))
}

#[cfg(test)]
mod tests {
    use super::{ChatTemplate, Error, Limits, Value, context};

    fn rendered(source: &str, seconds: f64, max_characters: usize) -> Result<String, Error> {
        let message = context! { role => "user", content => "Hé", tool_calls => Value::from(()) };
        let variables = context! { messages => vec![message] };
        ChatTemplate::compile(source)?.render(variables, Limits { seconds, max_characters })
    }

    #[test]
    fn template_renders_its_variables() {
        let source = "{% for m in messages %}\n  {% set x = [m.role] + ['b'] %}\n{{ x | tojson }}{% endfor %}\n\
                      {{ strftime_now('%Y') | length }}\r\n";
        assert_eq!(rendered(source, 1.0, 100).unwrap(), "[\"user\", \"b\"]4");
    }

    #[test]
    fn each_bound_has_its_error() {
        assert_eq!(rendered("{{ messages[0].content * 4 }}", 1.0, 8).unwrap(), "HéHéHéHé");
        assert_eq!(rendered("{{ messages[0].content * 4 }}", 1.0, 7), Err(Error::TooLong));
        assert_eq!(rendered("{% for i in range(99999) %}{% endfor %}", 0.001, 8), Err(Error::OutOfFuel));
        assert_eq!(rendered("{{ raise_exception('no ' ~ 1) }}", 1.0, 8), Err(Error::Refused("no 1".into())));
        assert!(
            matches!(rendered("\n{{ messages + 1 }}", 1.0, 8), Err(Error::Failed(m)) if m.ends_with("line 2"))
        );
        assert!(matches!(rendered("\n{% for %}", 1.0, 8), Err(Error::Malformed { line: 2, .. })));
    }

    #[test]
    fn containers_that_share_are_weighed_with_all_that_they_hold() {
        let doubled = "{% set s = ['a'] %}".to_owned() + &"{% set s = [s, s] %}".repeat(40);
        assert_eq!(rendered(&doubled, 0.1, 8), Err(Error::OutOfFuel));
        let deep = "{% set n = namespace(s=1) %}{% for i in range(999) %}{% set n.s = [n.s] %}{% endfor %}";
        assert!(
            matches!(rendered(deep, 1.0, 8), Err(Error::Failed(message)) if message.contains("too deep"))
        );
    }

    #[test]
    fn keys_of_messages_are_followed_through_names() {
        let source = "{% set rest = messages[1:] + [] %}{% for m in rest | reverse if 'a' in m %}{{ m['b'] }}\
                      {{ m.get('c') }}{% if '<think>' in m.d %}{% endif %}{% endfor %}{{ tools if x is defined }}";
        let template = ChatTemplate::compile(source).unwrap();
        let reads = template.reads();
        assert_eq!(Vec::from_iter(&reads.message_keys), ["a", "b", "c", "d", "get"]);
        assert_eq!(Vec::from_iter(&reads.variables), ["messages", "tools", "x"]);
        assert!(reads.sought.contains("<think>"));
    }
}
