//! How the fields of a step are declared: what `step_header!` and `step_fields!` make of a declaration.
//!
//! The place of a field follows from the bounds of the layout, in O(fields) and without allocation.

use std::ops::Range;

use pyengine_kernels_cpu::sampler::SamplingRow;

/// Every field begins at a multiple of this.
pub(super) const ALIGNMENT: usize = 64;

/// Who writes a field, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The planner; a device takes all of these in one piece.
    Planned,
    /// The planner, where a row of the step wants it.
    Listed,
    /// The planner, once every step before is committed and before the device samples.
    Late,
    /// The device.
    Results,
}

/// Where a field lies in the buffer.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name, as Python sees it.
    pub name: &'static str,
    /// The numpy name of its element type; [`ROW_DTYPE`] for rows of [`SamplingRow::FIELDS`].
    pub dtype: &'static str,
    /// Bytes from the beginning of the buffer.
    pub offset: usize,
    /// Number of elements.
    pub length: usize,
    /// Elements of each of its rows, if it is a table.
    pub width: Option<usize>,
    /// Who writes it, and when.
    pub phase: Phase,
    /// Its rows that count in the step.
    pub(super) used: usize,
    pub(super) row_bytes: usize,
}

impl Field {
    /// The bytes that count in the step.
    pub(super) fn used_bytes(&self) -> Range<usize> {
        self.offset..self.offset + self.used * self.row_bytes
    }
}

/// Stands for the type of a [`SamplingRow`].
pub const ROW_DTYPE: &str = "sampling_row";

/// Plain numbers that may be read from and written to any bytes.
pub(super) trait Element: Copy {
    const DTYPE: &'static str;
    /// Stands in the results of a step that no device has written; `NO_TOKEN` for a token.
    const FORGOTTEN: Self;
}
impl Element for i32 {
    const FORGOTTEN: Self = -1;
    const DTYPE: &'static str = "int32";
}
impl Element for i64 {
    const FORGOTTEN: Self = 0;
    const DTYPE: &'static str = "int64";
}
impl Element for u32 {
    const FORGOTTEN: Self = 0;
    const DTYPE: &'static str = "uint32";
}
impl Element for f32 {
    const FORGOTTEN: Self = f32::NAN;
    const DTYPE: &'static str = "float32";
}
impl Element for SamplingRow {
    const FORGOTTEN: Self = SamplingRow::NEUTRAL;
    const DTYPE: &'static str = ROW_DTYPE;
}

/// The numbers of a step's header are declared once: name and meaning, in their order.
macro_rules! step_header {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// The numbers of a step.
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct StepHeader {
            $($(#[doc = $doc])* pub $name: i64,)*
        }

        impl StepHeader {
            /// The name of each number, in their order.
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            /// A step without anything.
            pub const ZERO: Self = Self { $($name: 0),* };

            /// The numbers as an array has them; `None` if it is shorter.
            pub fn from_numbers(numbers: &[i64]) -> Option<Self> {
                let [$($name,)* ..] = *numbers else { return None };
                Some(Self { $($name),* })
            }
        }

        // All of it are `i64`.
        impl Element for StepHeader {
            const FORGOTTEN: Self = Self::ZERO;
            const DTYPE: &'static str = i64::DTYPE;
        }
    };
}
pub(super) use step_header;

/// The fields of a step are declared once, by who writes them and when: name, element type, which bound the length
/// follows (and, of a table, the width of a row), how many rows count in a step (else all), what stands in a logit's place
/// that no feature fills, meaning. The header is in front of them.
macro_rules! step_fields {
    ($($phase:ident {$(
        $(#[doc = $doc:literal])*
        $name:ident: $element:ty = [$rows:expr $(, $width:expr)?] $(, used $used:expr)? $(, neutral $neutral:expr)?;
    )*})*) => {
        /// The fields of one step as slices, each of its full length.
        pub struct StepBuffers<'a> {
            /// The numbers of the step.
            pub header: &'a mut StepHeader,
            $($($(#[doc = $doc])* pub $name: &'a mut [$element],)*)*
        }

        impl StepBuffers<'_> {
            /// Makes what features fill for single logits say nothing of the first `logits` of them.
            pub(super) fn clear(&mut self, logits: usize) {
                $($($(self.$name[..logits].fill($neutral);)?)*)*
            }
        }

        impl StepLayout {
            /// Shows every field, in the order of the buffer, as far as it counts in a step with this header.
            pub(super) fn each_field(&self, header: &StepHeader, mut show: impl FnMut(Field)) {
                let numbers = StepHeader::NAMES.len();
                show(Field {
                    name: "header",
                    dtype: StepHeader::DTYPE,
                    offset: 0,
                    length: numbers,
                    width: None,
                    phase: Phase::Planned,
                    used: numbers,
                    row_bytes: size_of::<i64>(),
                });
                let mut end = padded::<StepHeader>(1);
                $($(
                    let rows = bound(self, $rows);
                    let width: Option<usize> = None $(.or(Some(bound(self, $width))))?;
                    let counted: Option<usize> = None $(.or(Some(used(header, $used))))?;
                    let length = rows * width.unwrap_or(1);
                    show(Field {
                        name: stringify!($name),
                        dtype: <$element>::DTYPE,
                        offset: end,
                        length,
                        width,
                        phase: Phase::$phase,
                        used: counted.map_or(rows, |counted| counted.min(rows)),
                        row_bytes: size_of::<$element>() * width.unwrap_or(1),
                    });
                    end += padded::<$element>(length);
                )*)*
                debug_assert_eq!(end, self.nbytes());
            }

            /// Forgets the results of the step that was in these buffers before, as far as they count in the one that
            /// is planned there.
            pub(super) fn forget_results(&self, step: &mut StepBuffers<'_>) {
                $($(if matches!(Phase::$phase, Phase::Results) {
                    let rows: Option<usize> = None $(.or(Some(used(step.header, $used))))?;
                    let end = rows.unwrap_or(usize::MAX) $(.saturating_mul(bound(self, $width)))?;
                    let end = end.min(step.$name.len());
                    step.$name[..end].fill(<$element>::FORGOTTEN);
                })*)*
                step.device_times.fill(0);
            }

            /// Size of the buffer in bytes.
            pub fn nbytes(&self) -> usize {
                padded::<StepHeader>(1) $($(+ padded::<$element>(bound(self, $rows) $(* bound(self, $width))?))*)*
            }

            /// Typed slices over `bytes`, which must be `nbytes` long and 8-byte aligned.
            pub fn view<'a>(&self, bytes: &'a mut [u8]) -> Result<StepBuffers<'a>> {
                if bytes.len() != self.nbytes() || bytes.as_ptr().align_offset(8) != 0 {
                    return Err(Error::InvalidArgument(format!(
                        "the step buffer must have {} bytes, 8-byte aligned, not {}",
                        self.nbytes(),
                        bytes.len()
                    )));
                }
                let mut rest = bytes;
                Ok(StepBuffers {
                    header: &mut cut(&mut rest, 1)[0],
                    $($($name: cut::<$element>(
                        &mut rest,
                        bound(self, $rows) $(* bound(self, $width))?,
                    ),)*)*
                })
            }
        }
    };
}
pub(super) use step_fields;

/// How many rows of a field count in a step with this header.
pub(super) fn used<Header>(header: &Header, used: impl Fn(&Header) -> i64) -> usize {
    usize::try_from(used(header)).unwrap_or(0)
}

/// How long a field is, or how wide, in steps of this layout.
pub(super) fn bound<Layout>(layout: &Layout, bound: impl Fn(&Layout) -> usize) -> usize {
    bound(layout)
}

/// Bytes of a field of `length` elements, and of the gap behind it.
pub(super) fn padded<T>(length: usize) -> usize {
    (length * size_of::<T>()).next_multiple_of(ALIGNMENT)
}

/// Cuts a field of `length` elements from the front of `rest`.
pub(super) fn cut<'a, T: Element>(rest: &mut &'a mut [u8], length: usize) -> &'a mut [T] {
    let (field, tail) = std::mem::take(rest).split_at_mut(padded::<T>(length));
    *rest = tail;
    // SAFETY: `Element` is implemented only for numbers and rows of numbers, for which any bytes are a value.
    let (head, elements, _) = unsafe { field.align_to_mut::<T>() };
    assert!(head.is_empty(), "fields begin aligned when the buffer does");
    &mut elements[..length]
}
