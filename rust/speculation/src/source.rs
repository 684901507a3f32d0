//! The draft token sources: the one place that names them. Python's settings, help texts and metrics take them from here.

/// How good the evidence for a draft is: each source has its own few classes, worst first, whose acceptance is
/// measured apart.
pub(super) type Class = u8;

/// Most classes of a source.
pub(super) const CLASSES: usize = 10;

/// Declares the sources: name, whether it drafts unless settings say otherwise, and a description for help texts.
macro_rules! sources {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $default:literal, $description:literal;)*) => {
        /// Where draft tokens come from; the order is that of the metrics.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Source { $($(#[$doc])* $variant,)* }

        impl Source {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its name in settings and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The text that the source drafts, in a few words.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$variant => $description,)* }
            }

            /// Whether it drafts unless settings say otherwise.
            pub const fn by_default(self) -> bool {
                match self { $(Self::$variant => $default,)* }
            }
        }
    };
}

sources! {
    /// The grammar allows nothing else.
    Forced = "forced", true, "text that a grammar leaves no choice in";
    /// The output that the client predicts.
    Prediction = "prediction", true, "the output that the client predicts";
    /// The tokens that followed the same few tokens earlier in the request.
    Ngram = "ngram", true, "what followed the same few tokens earlier in the request";
    /// A smaller model on the device.
    DraftModel = "draft_model", false, "a smaller model";
}

/// How many sources there are.
pub const SOURCES: usize = Source::ALL.len();

impl Source {
    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|source| source.name() == name)
    }

    /// The acceptance that is assumed before any draft of a class was judged.
    pub(super) fn prior(self, class: Class) -> f32 {
        match self {
            Self::Forced => 0.98,
            Self::Prediction => [0.5, 0.7, 0.8, 0.9, 0.95][usize::from(class.min(4))],
            Self::Ngram => [0.35, 0.5, 0.6, 0.75, 0.85][usize::from(class.min(4))],
            Self::DraftModel => 0.7,
        }
    }
}

/// A set of sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sources(u32);

impl Sources {
    /// Whether a source is among them.
    pub fn has(self, source: Source) -> bool {
        self.0 & 1 << source as u32 != 0
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Source> for Sources {
    fn from_iter<T: IntoIterator<Item = Source>>(sources: T) -> Self {
        Self(sources.into_iter().fold(0, |set, source| set | 1 << source as u32))
    }
}
