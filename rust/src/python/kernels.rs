//! The kernels of the CPU runner on Python's buffers: no copies, the GIL released while they work.
//!
//! A buffer is looked at once, when its [`CpuTensor`] is made; a call then borrows plain slices, which costs
//! a fraction of a microsecond.

use half::bf16;
use pyengine_kernels_cpu::linear;
use pyengine_kernels_cpu::sampler::edits::Edits;
use pyengine_kernels_cpu::sampler::logprobs::{self, Table};
use pyengine_kernels_cpu::sampler::{self, Rules, mask, verify};
use pyengine_kernels_cpu::step::{BadStep, Step};
use pyengine_kernels_cpu::threads::Threads;
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;

use crate::error::Error;
use crate::python::errors::guarded;
use crate::python::program::{CpuProgram, Op};

impl From<BadStep> for Error {
    fn from(error: BadStep) -> Self {
        Self::InvalidArgument(error.to_string())
    }
}

pub(super) fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::InvalidArgument(message))
}

/// What the elements of a buffer are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Float32,
    Bfloat16,
    Int32,
    Int64,
    Uint32,
    Uint64,
}

/// A plain number type and the kind of buffer that holds it.
pub(super) trait Number: Copy {
    const KIND: Kind;
}

macro_rules! numbers {
    ($($number:ty => $kind:ident),*) => { $(impl Number for $number { const KIND: Kind = Kind::$kind; })* };
}
numbers!(f32 => Float32, bf16 => Bfloat16, i32 => Int32, i64 => Int64, u32 => Uint32, u64 => Uint64);

/// A C-contiguous buffer of numbers, looked at once.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuTensor {
    pub(super) buffer: PyUntypedBuffer,
    pub(super) kind: Kind,
}

#[pymethods]
impl CpuTensor {
    #[new]
    fn new(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(array)?;
        let kind = match ElementType::from_format(buffer.format()) {
            ElementType::Float { bytes: 4 } => Kind::Float32,
            ElementType::SignedInteger { bytes: 2 } | ElementType::UnsignedInteger { bytes: 2 } => {
                Kind::Bfloat16
            }
            ElementType::SignedInteger { bytes: 4 } => Kind::Int32,
            ElementType::SignedInteger { bytes: 8 } => Kind::Int64,
            ElementType::UnsignedInteger { bytes: 4 } => Kind::Uint32,
            ElementType::UnsignedInteger { bytes: 8 } => Kind::Uint64,
            other => {
                return Err(invalid::<()>(format!("a CpuTensor cannot hold {other:?}")).unwrap_err().into());
            }
        };
        if !buffer.is_c_contiguous() || buffer.buf_ptr().align_offset(buffer.item_size()) != 0 {
            invalid::<()>("a CpuTensor must be C-contiguous and aligned".into())?;
        }
        Ok(Self { buffer, kind })
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
            Kind::Int32 => "int32",
            Kind::Int64 => "int64",
            Kind::Uint32 => "uint32",
            Kind::Uint64 => "uint64",
        }
    }
}

impl CpuTensor {
    pub(super) fn check<T: Number>(&self, name: &str, length: usize) -> Result<*mut T, Error> {
        if self.kind != T::KIND {
            return invalid(format!("{name} must be {:?}, not {:?}", T::KIND, self.kind));
        }
        if self.buffer.item_count() < length {
            return invalid(format!("{name} has {} elements, needs {length}", self.buffer.item_count()));
        }
        Ok(self.buffer.buf_ptr().cast())
    }

    /// The first `length` elements.
    pub(super) fn read<T: Number>(&self, name: &str, length: usize) -> Result<&[T], Error> {
        let start = self.check::<T>(name, length)?;
        if length == 0 {
            return Ok(&[]);
        }
        // SAFETY: contiguous, aligned, of this type and at least this long, checked when it was made and
        // just now; alive as long as the buffer. That nobody writes to it during a call is the contract
        // of the Python class: one thread at a time.
        Ok(unsafe { std::slice::from_raw_parts(start, length) })
    }

    /// The whole of it.
    pub(super) fn read_all<T: Number>(&self, name: &str) -> Result<&[T], Error> {
        self.read(name, self.buffer.item_count())
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
        let range = |tensor: &CpuTensor| {
            let start = tensor.buffer.buf_ptr() as usize;
            start..start + tensor.buffer.len_bytes()
        };
        let mine = range(self);
        if others
            .iter()
            .map(|other| range(other))
            .any(|other| mine.start < other.end && other.start < mine.end)
        {
            return invalid(format!("{name} overlaps another argument"));
        }
        if length == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `read`; and no other slice of this call overlaps it, by the check above.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, length) })
    }

    /// Rows of its first dimension, at least 1.
    pub(super) fn rows(&self) -> usize {
        self.buffer.shape().first().copied().unwrap_or(1).max(1)
    }

    pub(super) fn width(&self) -> usize {
        self.buffer.shape().last().copied().unwrap_or(1)
    }
}

/// The step buffers that attention reads.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuStep {
    header: CpuTensor,
    positions: CpuTensor,
    slot_mapping: CpuTensor,
    query_start: CpuTensor,
    kv_length: CpuTensor,
    page_indptr: CpuTensor,
    page_indices: CpuTensor,
}

#[pymethods]
impl CpuStep {
    #[new]
    fn new(
        header: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        slot_mapping: &Bound<'_, PyAny>,
        query_start: &Bound<'_, PyAny>,
        kv_length: &Bound<'_, PyAny>,
        page_indptr: &Bound<'_, PyAny>,
        page_indices: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            header: CpuTensor::new(header)?,
            positions: CpuTensor::new(positions)?,
            slot_mapping: CpuTensor::new(slot_mapping)?,
            query_start: CpuTensor::new(query_start)?,
            kv_length: CpuTensor::new(kv_length)?,
            page_indptr: CpuTensor::new(page_indptr)?,
            page_indices: CpuTensor::new(page_indices)?,
        })
    }
}

impl CpuStep {
    pub(super) fn view(&self) -> Result<Step<'_>, Error> {
        let header = self.header.read::<i64>("header", 2)?;
        let count = |index: usize| {
            usize::try_from(header[index]).map_err(|_| Error::InvalidArgument("a negative count".into()))
        };
        Ok(Step {
            num_rows: count(0)?,
            num_tokens: count(1)?,
            positions: self.positions.read_all("positions")?,
            slot_mapping: self.slot_mapping.read_all("slot_mapping")?,
            query_start: self.query_start.read_all("query_start")?,
            kv_length: self.kv_length.read_all("kv_length")?,
            page_indptr: self.page_indptr.read_all("page_indptr")?,
            page_indices: self.page_indices.read_all("page_indices")?,
        })
    }
}

/// What is sampled by which rules, in the step buffers.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuRules {
    temperature: CpuTensor,
    top_k: CpuTensor,
    top_p: CpuTensor,
    min_p: CpuTensor,
    seed: CpuTensor,
    sample_position: CpuTensor,
    logit_start: CpuTensor,
    logit_row: CpuTensor,
    logit_token: CpuTensor,
    mask_row: CpuTensor,
    mask: CpuTensor,
    mask_words: usize,
}

#[pymethods]
impl CpuRules {
    #[new]
    #[pyo3(signature = (*, temperature, top_k, top_p, min_p, seed, sample_position,
        logit_start, logit_row, logit_token, mask_row, mask, mask_words))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        temperature: &Bound<'_, PyAny>,
        top_k: &Bound<'_, PyAny>,
        top_p: &Bound<'_, PyAny>,
        min_p: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        sample_position: &Bound<'_, PyAny>,
        logit_start: &Bound<'_, PyAny>,
        logit_row: &Bound<'_, PyAny>,
        logit_token: &Bound<'_, PyAny>,
        mask_row: &Bound<'_, PyAny>,
        mask: &Bound<'_, PyAny>,
        mask_words: usize,
    ) -> PyResult<Self> {
        Ok(Self {
            temperature: CpuTensor::new(temperature)?,
            top_k: CpuTensor::new(top_k)?,
            top_p: CpuTensor::new(top_p)?,
            min_p: CpuTensor::new(min_p)?,
            seed: CpuTensor::new(seed)?,
            sample_position: CpuTensor::new(sample_position)?,
            logit_start: CpuTensor::new(logit_start)?,
            logit_row: CpuTensor::new(logit_row)?,
            logit_token: CpuTensor::new(logit_token)?,
            mask_row: CpuTensor::new(mask_row)?,
            mask: CpuTensor::new(mask)?,
            mask_words,
        })
    }
}

impl CpuRules {
    fn view(&self) -> Result<Rules<'_>, Error> {
        Ok(Rules {
            temperature: self.temperature.read_all("temperature")?,
            top_k: self.top_k.read_all("top_k")?,
            top_p: self.top_p.read_all("top_p")?,
            min_p: self.min_p.read_all("min_p")?,
            seed: self.seed.read_all("seed")?,
            sample_position: self.sample_position.read_all("sample_position")?,
            logit_start: self.logit_start.read_all("logit_start")?,
            logit_row: self.logit_row.read_all("logit_row")?,
            logit_token: self.logit_token.read_all("logit_token")?,
            mask_row: self.mask_row.read_all("mask_row")?,
            mask: self.mask.read_all("mask")?,
            mask_words: self.mask_words,
        })
    }
}

/// The edits of logits in the step buffers, and room for what was there before.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuEdits {
    start: CpuTensor,
    token: CpuTensor,
    factor: CpuTensor,
    add: CpuTensor,
    before: CpuTensor,
}

#[pymethods]
impl CpuEdits {
    #[new]
    #[pyo3(signature = (*, start, token, factor, add, before))]
    fn new(
        start: &Bound<'_, PyAny>,
        token: &Bound<'_, PyAny>,
        factor: &Bound<'_, PyAny>,
        add: &Bound<'_, PyAny>,
        before: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            start: CpuTensor::new(start)?,
            token: CpuTensor::new(token)?,
            factor: CpuTensor::new(factor)?,
            add: CpuTensor::new(add)?,
            before: CpuTensor::new(before)?,
        })
    }
}

impl CpuEdits {
    /// Edits `rows` rows of `logits`, from logits row `first` of the step on, or undoes that.
    fn run(&self, logits: &CpuTensor, first: usize, rows: usize, undo: bool) -> Result<(), Error> {
        let edits = Edits {
            start: self.start.read_all("start")?,
            token: self.token.read_all("token")?,
            factor: self.factor.read_all("factor")?,
            add: self.add.read_all("add")?,
        };
        let vocabulary = logits.width();
        edits.check(first, first.saturating_add(rows), vocabulary)?;
        let others = [logits, &self.start, &self.token, &self.factor, &self.add];
        let before = self.before.write::<f32>("before", edits.token.len(), &others)?;
        by_element!(logits, T => {
            let logits = logits.write::<T>("logits", rows.saturating_mul(vocabulary), &others[1..])?;
            match undo {
                true => edits.restore(logits, vocabulary, first, before),
                false => edits.apply(logits, vocabulary, first, before),
            }
            Ok::<_, Error>(())
        })
    }
}

/// The weights of a linear layer, packed for `CpuKernels.linear`.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuLinear {
    pub(super) inner: linear::Weights,
}

#[pymethods]
impl CpuLinear {
    #[new]
    fn new(py: Python<'_>, weight: &CpuTensor, bias: Option<&CpuTensor>) -> PyResult<Self> {
        py.detach(|| {
            guarded(|| {
                let &[outputs, inputs] = weight.buffer.shape() else {
                    return invalid("weight must be [outputs, inputs]".into());
                };
                let bias = bias.map_or(Ok(&[][..]), |bias| bias.read::<f32>("bias", outputs))?;
                let weight = weight.read_all::<f32>("weight")?;
                Ok::<_, Error>(Self { inner: linear::Weights::new(weight, bias, inputs, outputs) })
            })
        })
    }

    /// Whether this machine's processor has what `CpuKernels.linear` needs.
    #[staticmethod]
    fn supported() -> bool {
        linear::supported()
    }
}

/// The kernels, with the threads that they share.
#[pyclass(frozen, module = "pyengine._core")]
pub(crate) struct CpuKernels {
    pub(super) threads: Threads,
}

/// Calls `$body` with `$T` standing for the element type of `$tensor`.
macro_rules! by_element {
    ($tensor:expr, $T:ident => $body:expr) => {
        match $tensor.kind {
            Kind::Float32 => {
                type $T = f32;
                $body
            }
            Kind::Bfloat16 => {
                type $T = half::bf16;
                $body
            }
            other => invalid(format!("no kernel for {other:?}")),
        }
    };
}
pub(super) use by_element;

#[pymethods]
impl CpuKernels {
    #[new]
    fn new(threads: usize) -> PyResult<Self> {
        let threads = Threads::new(threads).map_err(|error| Error::System(error.to_string()))?;
        Ok(Self { threads })
    }

    #[getter]
    fn threads(&self) -> usize {
        self.threads.count()
    }

    #[pyo3(signature = (residual, branch, weight, epsilon, out, rows))]
    #[allow(clippy::too_many_arguments)]
    fn add_rms_norm(
        &self,
        py: Python<'_>,
        residual: Py<CpuTensor>,
        branch: Option<Py<CpuTensor>>,
        weight: Py<CpuTensor>,
        epsilon: f32,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::AddRmsNorm { residual, branch, weight, epsilon, out }, rows)
    }

    #[pyo3(signature = (qkv, query_weight, key_weight, num_heads, epsilon, rows))]
    #[allow(clippy::too_many_arguments)]
    fn head_rms_norm(
        &self,
        py: Python<'_>,
        qkv: Py<CpuTensor>,
        query_weight: Py<CpuTensor>,
        key_weight: Py<CpuTensor>,
        num_heads: usize,
        epsilon: f32,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::HeadRmsNorm { qkv, query_weight, key_weight, num_heads, epsilon }, rows)
    }

    fn silu_mul(
        &self,
        py: Python<'_>,
        gate_up: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::SiluMul { gate_up, out }, rows)
    }

    fn linear(
        &self,
        py: Python<'_>,
        weights: Py<CpuLinear>,
        x: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
    ) -> PyResult<()> {
        self.run(py, &Op::Linear { weights, x, out }, rows)
    }

    #[pyo3(signature = (table, index, out, rows, first = 0))]
    #[allow(clippy::too_many_arguments)]
    fn gather(
        &self,
        py: Python<'_>,
        table: Py<CpuTensor>,
        index: Py<CpuTensor>,
        out: Py<CpuTensor>,
        rows: usize,
        first: usize,
    ) -> PyResult<()> {
        let op = Op::Gather { table, index, out };
        py.detach(|| guarded(|| op.run(&self.threads, first, rows)))
    }

    #[pyo3(signature = (step, qkv, angles, keys, values, out, num_heads, scale))]
    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        py: Python<'_>,
        step: Py<CpuStep>,
        qkv: Py<CpuTensor>,
        angles: Py<CpuTensor>,
        keys: Py<CpuTensor>,
        values: Py<CpuTensor>,
        out: Py<CpuTensor>,
        num_heads: usize,
        scale: f32,
    ) -> PyResult<()> {
        self.run(py, &Op::Attend { step, qkv, angles, keys, values, out, num_heads, scale }, 0)
    }

    #[pyo3(signature = (rules, logits, out, first, rows))]
    fn sample(
        &self,
        py: Python<'_>,
        rules: &CpuRules,
        logits: &CpuTensor,
        out: &CpuTensor,
        first: usize,
        rows: usize,
    ) -> PyResult<()> {
        py.detach(|| guarded(|| sample(&self.threads, rules, logits, out, first, rows)))
    }

    /// A few numbers a row: to let go of the GIL would cost more.
    #[pyo3(signature = (edits, logits, first, rows))]
    fn edit(&self, edits: &CpuEdits, logits: &CpuTensor, first: usize, rows: usize) -> PyResult<()> {
        guarded(|| edits.run(logits, first, rows, false))
    }

    #[pyo3(signature = (edits, logits, first, rows))]
    fn restore(&self, edits: &CpuEdits, logits: &CpuTensor, first: usize, rows: usize) -> PyResult<()> {
        guarded(|| edits.run(logits, first, rows, true))
    }

    #[pyo3(signature = (rules, wanted, logits, chosen, tokens, logprobs, of_chosen, first, rows))]
    #[allow(clippy::too_many_arguments)]
    fn top_logprobs(
        &self,
        py: Python<'_>,
        rules: &CpuRules,
        wanted: &CpuTensor,
        logits: &CpuTensor,
        chosen: &CpuTensor,
        tokens: &CpuTensor,
        logprobs: &CpuTensor,
        of_chosen: &CpuTensor,
        first: usize,
        rows: usize,
    ) -> PyResult<()> {
        let inputs = [wanted, logits, chosen];
        let outputs = [tokens, logprobs, of_chosen];
        py.detach(|| guarded(|| top_logprobs(&self.threads, rules, inputs, outputs, first, rows)))
    }

    #[pyo3(signature = (rules, token_ids, tokens, counts, sampled))]
    fn verify(
        &self,
        rules: &CpuRules,
        token_ids: &CpuTensor,
        tokens: &CpuTensor,
        counts: &CpuTensor,
        sampled: usize,
    ) -> PyResult<()> {
        // A few comparisons: to let go of the GIL would cost more.
        guarded(|| {
            let rules = rules.view()?;
            let ids = token_ids.read_all::<i32>("token_ids")?;
            let chosen = tokens.read_all::<i32>("tokens")?;
            rules.check_drafts(sampled, ids.len(), chosen.len())?;
            let counts = counts.write::<i32>("counts", sampled, &[token_ids, tokens])?;
            verify::verify(&rules, ids, chosen, counts);
            Ok::<_, Error>(())
        })
    }
}

impl CpuKernels {
    fn run(&self, py: Python<'_>, op: &Op, rows: usize) -> PyResult<()> {
        py.detach(|| guarded(|| op.run(&self.threads, 0, rows)))
    }
}

/// Fills `out[first..first + rows]` from the first `rows` rows of `logits`.
pub(super) fn sample(
    threads: &Threads,
    rules: &CpuRules,
    logits: &CpuTensor,
    out: &CpuTensor,
    first: usize,
    rows: usize,
) -> Result<(), Error> {
    let vocabulary = logits.width();
    let end = first.saturating_add(rows);
    let rules = rules.view()?;
    rules.check(first, end, vocabulary)?;
    let tokens = out.write::<i32>("out", end, &[logits])?;
    by_element!(logits, T => {
        let logits = logits.read::<T>("logits", rows.saturating_mul(vocabulary))?;
        sampler::sample(threads, logits, vocabulary, &rules, first, &mut tokens[first..]);
        Ok::<_, Error>(())
    })
}

/// Fills `[tokens, logprobs, of_chosen]`, by logits row of the step, for the logits rows `first..first + rows`, from
/// `[wanted, logits, chosen]`.
fn top_logprobs(
    threads: &Threads,
    rules: &CpuRules,
    [wanted, logits, chosen]: [&CpuTensor; 3],
    [tokens, logprobs, of_chosen]: [&CpuTensor; 3],
    first: usize,
    rows: usize,
) -> Result<(), Error> {
    let (vocabulary, width) = (logits.width(), tokens.width());
    let end = first.saturating_add(rows);
    let rules = rules.view()?;
    rules.check(first, end, vocabulary)?;
    let wanted = wanted.read::<i32>("wanted", rules.temperature.len())?;
    let picked = chosen.read::<i32>("chosen", end)?;
    let table = Table {
        tokens: tokens.write("tokens", end.saturating_mul(width), &[logits, chosen, logprobs, of_chosen])?,
        logprobs: logprobs.write(
            "logprobs",
            end.saturating_mul(width),
            &[logits, chosen, tokens, of_chosen],
        )?,
        chosen: of_chosen.write("of_chosen", end, &[logits, chosen, tokens, logprobs])?,
        width,
    };
    by_element!(logits, T => {
        let logits = logits.read::<T>("logits", rows.saturating_mul(vocabulary))?;
        logprobs::top_logprobs(threads, logits, vocabulary, &rules, wanted, picked, first, rows, table);
        Ok::<_, Error>(())
    })
}

/// For each row the `hash % n`-th of the n tokens that its mask allows; see the stub.
#[pyfunction]
fn pick_allowed(
    mask: &Bound<'_, PyAny>,
    words: usize,
    mask_rows: &Bound<'_, PyAny>,
    hashes: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (mask, mask_rows, hashes, out) =
        (CpuTensor::new(mask)?, CpuTensor::new(mask_rows)?, CpuTensor::new(hashes)?, CpuTensor::new(out)?);
    guarded(|| {
        let masks = mask.read_all::<u32>("mask")?;
        let rows = mask_rows.read_all::<i32>("mask_rows")?;
        let keys = hashes.read::<u64>("hashes", rows.len())?;
        let tokens = out.write::<i32>("out", rows.len(), &[&mask, &mask_rows, &hashes])?;
        let count = masks.len().checked_div(words).unwrap_or(0);
        if let Some(row) = rows.iter().find(|&&row| row >= 0 && row as usize >= count) {
            return invalid(format!("there is no mask row {row} among {count}"));
        }
        for ((token, &row), &hash) in tokens.iter_mut().zip(rows).zip(keys) {
            if let Ok(row) = usize::try_from(row) {
                *token = mask::pick(&masks[row * words..][..words], hash).map_or(-1, |token| token as i32);
            }
        }
        Ok::<_, Error>(())
    })
}

/// Adds the classes to the module.
pub(super) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CpuTensor>()?;
    module.add_class::<CpuStep>()?;
    module.add_class::<CpuRules>()?;
    module.add_class::<CpuEdits>()?;
    module.add_class::<CpuLinear>()?;
    module.add_class::<CpuKernels>()?;
    module.add_class::<CpuProgram>()?;
    module.add_function(wrap_pyfunction!(pick_allowed, module)?)
}
