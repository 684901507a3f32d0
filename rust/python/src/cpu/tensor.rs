//! `pyengine._core.CpuTensor`: a buffer of Python's as a slice.
//!
//! A buffer is looked at once, when its tensor is made; a call then borrows plain slices, O(1): it checks type, length
//! and, to write, that no other argument lies in the same memory.

use half::bf16;
use pyengine_kernels_cpu::columns::Columns;
use pyo3::Borrowed;
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;

use pyengine_kernels_cpu::threads::Shared;

use crate::errors::Raise;
use pyengine_base::error::Error;

/// An argument that is not as it must be.
pub(super) fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::InvalidArgument(message))
}

/// The type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Float32,
    Bfloat16,
    Uint8,
    Int32,
    Int64,
    Uint32,
    Uint64,
}

/// A plain number type and the kind of buffer that holds it.
pub(crate) trait Number: Copy {
    const KIND: Kind;
}

macro_rules! numbers {
    ($($number:ty => $kind:ident),*) => { $(impl Number for $number { const KIND: Kind = Kind::$kind; })* };
}
numbers!(f32 => Float32, bf16 => Bfloat16, u8 => Uint8, i32 => Int32, i64 => Int64, u32 => Uint32, u64 => Uint64);

/// A buffer of numbers, looked at once: C-contiguous, or blocks \[blocks, ...\] that are, with room between them.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuTensor {
    pub(super) buffer: PyUntypedBuffer,
    pub(super) kind: Kind,
    /// Elements from one entry of the first dimension to the next.
    pub(super) stride: usize,
}

impl<'a, 'py> FromPyObject<'a, 'py> for CpuTensor {
    type Error = PyErr;

    fn extract(array: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Self::new(&array)
    }
}

#[pymethods]
impl CpuTensor {
    #[new]
    pub(super) fn new(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(array)?;
        let kind = match ElementType::from_format(buffer.format()) {
            ElementType::Float { bytes: 4 } => Kind::Float32,
            ElementType::SignedInteger { bytes: 2 } | ElementType::UnsignedInteger { bytes: 2 } => {
                Kind::Bfloat16
            }
            ElementType::UnsignedInteger { bytes: 1 } => Kind::Uint8,
            ElementType::SignedInteger { bytes: 4 } => Kind::Int32,
            ElementType::SignedInteger { bytes: 8 } => Kind::Int64,
            ElementType::UnsignedInteger { bytes: 4 } => Kind::Uint32,
            ElementType::UnsignedInteger { bytes: 8 } => Kind::Uint64,
            other => return invalid(format!("a CpuTensor cannot hold {other:?}")).map_err(Raise::raise),
        };
        let stride = block_stride(&buffer);
        let Some(stride) = stride.filter(|_| buffer.buf_ptr().align_offset(buffer.item_size()) == 0) else {
            return invalid("a CpuTensor must be C-contiguous and aligned".into()).map_err(Raise::raise);
        };
        Ok(Self { buffer, kind, stride })
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.buffer.shape().to_vec()
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        match self.kind {
            Kind::Float32 => "float32",
            Kind::Bfloat16 => "bfloat16",
            Kind::Uint8 => "uint8",
            Kind::Int32 => "int32",
            Kind::Int64 => "int64",
            Kind::Uint32 => "uint32",
            Kind::Uint64 => "uint64",
        }
    }
}

/// Elements from one entry of the first dimension to the next; None if entries overlap or are not in one piece.
fn block_stride(buffer: &PyUntypedBuffer) -> Option<usize> {
    let (shape, item) = (buffer.shape(), buffer.item_size());
    let entry: usize = shape.iter().skip(1).product();
    if buffer.is_c_contiguous() {
        return Some(entry);
    }
    let mut expected = entry;
    for (&size, &stride) in shape.iter().zip(buffer.strides()).skip(1) {
        expected /= size.max(1);
        if size > 1 && usize::try_from(stride) != Ok(expected * item) {
            return None;
        }
    }
    let first = usize::try_from(*buffer.strides().first()?).ok()?;
    (first.is_multiple_of(item) && first / item >= entry).then_some(first / item)
}

impl CpuTensor {
    /// Elements from the first to the last, those between blocks counted in.
    pub(super) fn extent(&self) -> usize {
        let shape = self.buffer.shape();
        let entry: usize = shape.iter().skip(1).product();
        shape.first().map_or(1, |&blocks| blocks.saturating_sub(1) * self.stride + entry)
    }

    pub(super) fn check<T: Number>(&self, name: &str, length: usize) -> Result<*mut T, Error> {
        if self.kind != T::KIND {
            return invalid(format!("{name} must be {:?}, not {:?}", T::KIND, self.kind));
        }
        if self.extent() < length {
            return invalid(format!("{name} has {} elements, needs {length}", self.extent()));
        }
        Ok(self.buffer.buf_ptr().cast())
    }

    /// The first `length` elements.
    pub(super) fn read<T: Number>(&self, name: &str, length: usize) -> Result<&[T], Error> {
        let start = self.check::<T>(name, length)?;
        if length == 0 {
            return Ok(&[]);
        }
        // SAFETY: one piece of memory, if there is room between blocks, too, which are views of one array; aligned,
        // of this type and at least this long, checked when it was made and just now; alive as long as the buffer. That no other thread writes to it during a call is the contract
        // of the Python class: one thread at a time.
        Ok(unsafe { std::slice::from_raw_parts(start, length) })
    }

    /// The first `rows` rows, which may be columns of a wider buffer.
    pub(super) fn columns<T: Number>(&self, name: &str, rows: usize) -> Result<Columns<'_, T>, Error> {
        let &[_, width] = self.buffer.shape() else {
            return invalid(format!("{name} must be [rows, columns]"));
        };
        let length =
            rows.checked_sub(1).map_or(0, |last| last.saturating_mul(self.stride).saturating_add(width));
        Ok(Columns::new(self.read(name, length)?, width, self.stride))
    }

    /// The whole of it.
    pub(crate) fn read_all<T: Number>(&self, name: &str) -> Result<&[T], Error> {
        self.read(name, self.extent())
    }

    /// The first `length` elements, to write; they must overlap none of `others`.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn write<T: Number>(
        &self,
        name: &str,
        length: usize,
        others: &[&CpuTensor],
    ) -> Result<&mut [T], Error> {
        let start = self.check::<T>(name, length)?;
        if self.buffer.readonly() {
            return invalid(format!("{name} is read-only"));
        }
        if others.iter().any(|other| self.overlaps(other)) {
            return invalid(format!("{name} overlaps another argument"));
        }
        if length == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `read`; and no other slice of this call overlaps it, by the check above.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, length) })
    }

    /// All blocks, to write by threads; no block may overlap one of `beside`, which may lie between them, nor any of
    /// `others`.
    pub(super) fn write_blocks<T: Number>(
        &self,
        name: &str,
        beside: &CpuTensor,
        others: &[&CpuTensor],
    ) -> Result<Shared<'_, T>, Error> {
        let length = self.extent();
        let start = self.check::<T>(name, length)?;
        if self.buffer.readonly() {
            return invalid(format!("{name} is read-only"));
        }
        if others.iter().any(|other| self.overlaps(other))
            || (self.overlaps(beside) && !self.lies_between(beside))
        {
            return invalid(format!("{name} overlaps another argument"));
        }
        // SAFETY: memory as in `read`; of which the caller writes nothing but its blocks, which no other argument
        // overlaps, by the check above.
        Ok(unsafe { Shared::of_memory(start, length) })
    }

    /// The bytes from its first element to its last, those between blocks counted in.
    fn range(&self) -> std::ops::Range<usize> {
        let start = self.buffer.buf_ptr() as usize;
        start..start + self.extent() * self.buffer.item_size()
    }

    fn overlaps(&self, other: &Self) -> bool {
        let (mine, other) = (self.range(), other.range());
        mine.start < other.end && other.start < mine.end
    }

    /// Whether its blocks and those of `other` are as far apart as each other, and lie between each other.
    fn lies_between(&self, other: &Self) -> bool {
        let entry = |tensor: &Self| tensor.buffer.shape().iter().skip(1).product::<usize>();
        let item = self.buffer.item_size();
        let stride = self.stride * item;
        if stride == 0 || item != other.buffer.item_size() || self.stride != other.stride {
            return false;
        }
        let apart = (other.buffer.buf_ptr() as usize).wrapping_sub(self.buffer.buf_ptr() as usize) as isize;
        let apart = apart.rem_euclid(stride as isize) as usize;
        entry(self) * item <= apart && apart + entry(other) * item <= stride
    }

    /// Rows of its first dimension, at least 1.
    pub(crate) fn rows(&self) -> usize {
        self.buffer.shape().first().copied().unwrap_or(1).max(1)
    }

    pub(super) fn width(&self) -> usize {
        self.buffer.shape().last().copied().unwrap_or(1)
    }
}

/// The first `length` numbers of a tensor; none where there is no tensor.
pub(super) fn floats<'a>(
    tensor: Option<&'a Py<CpuTensor>>,
    name: &str,
    length: usize,
) -> Result<&'a [f32], Error> {
    tensor.map_or(Ok(&[][..]), |tensor| tensor.get().read(name, length))
}

/// Calls `$body` with `$T` standing for the element type of `$tensor`.
macro_rules! by_element {
    ($tensor:expr, $T:ident => $body:expr) => {
        match $tensor.kind {
            $crate::cpu::tensor::Kind::Float32 => {
                type $T = f32;
                $body
            }
            $crate::cpu::tensor::Kind::Bfloat16 => {
                type $T = half::bf16;
                $body
            }
            other => $crate::cpu::tensor::invalid(format!("no kernel for {other:?}")),
        }
    };
}
pub(super) use by_element;
