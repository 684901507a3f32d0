//! A token as the matrix of one head sees it, and the record of a draft.

use super::shape::Shape;

/// Most columns of a tile.
pub const MAX_COLUMNS: usize = 64;

/// A token as the matrix of one head sees it.
#[derive(Debug, Default)]
pub struct Token {
    /// \[key dim\].
    pub query: Vec<f32>,
    /// \[key dim\].
    pub key: Vec<f32>,
    /// \[key dim\]: what each row is multiplied with.
    pub decay: Vec<f32>,
    /// \[key dim\]: decay * key.
    pub decayed_key: Vec<f32>,
    /// \[value dim\], and zeros up to whole tiles.
    pub value: Vec<f32>,
    /// How much of the value is taken in.
    pub rate: f32,
    /// How much of the value is added to what is read.
    pub skip: f32,
}

impl Token {
    /// Makes room for a layer's matrices.
    pub fn resize(&mut self, shape: &Shape) {
        for rows in [&mut self.query, &mut self.key, &mut self.decay, &mut self.decayed_key] {
            rows.resize(shape.key_dim, 0.0);
        }
        self.value.clear();
        self.value.resize(shape.value_dim.next_multiple_of(MAX_COLUMNS), 0.0);
        self.skip = 0.0;
    }

    /// Gives all rows the decay of the first, where a head has one alone.
    #[inline(always)]
    pub fn share_decay(&mut self, decays: usize) {
        if decays == 1 {
            let decay = self.decay[0];
            self.decay.fill(decay);
        }
    }

    /// Multiplies key and decay.
    #[inline(always)]
    pub fn decay_key(&mut self) {
        for ((to, key), decay) in self.decayed_key.iter_mut().zip(&self.key).zip(&self.decay) {
            *to = key * decay;
        }
    }

    /// Writes what the token adds to a record.
    pub fn save(&self, shape: &Shape, record: &mut [f32]) {
        let (key, rest) = record.split_at_mut(shape.key_dim);
        let (value, rest) = rest.split_at_mut(shape.value_dim);
        let (decays, rate) = rest.split_at_mut(shape.decays);
        key.copy_from_slice(&self.key);
        value.copy_from_slice(&self.value[..shape.value_dim]);
        decays.copy_from_slice(&self.decay[..shape.decays]);
        rate[0] = self.rate;
    }

    /// Takes it from there.
    pub fn load(&mut self, shape: &Shape, record: &[f32]) {
        let (key, rest) = record.split_at(shape.key_dim);
        let (value, rest) = rest.split_at(shape.value_dim);
        let (decays, rate) = rest.split_at(shape.decays);
        self.key.copy_from_slice(key);
        self.value[..shape.value_dim].copy_from_slice(value);
        match decays {
            [decay] => self.decay.fill(*decay),
            decays => self.decay.copy_from_slice(decays),
        }
        self.rate = rate[0];
        self.decay_key();
    }
}
