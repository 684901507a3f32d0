//! Assembles the bytes of tokens to text; a character is withheld until it is whole.
//!
//! Both follow `tokenizers` exactly, so that the joined text of a stream equals its `decode`:
//!
//! - [`Lossy`], for byte-level tokens: the bytes are one stream; each maximal part of an invalid sequence becomes one
//!   U+FFFD, as in [`String::from_utf8_lossy`]. At most 3 bytes are withheld.
//! - [`ByteRuns`], for byte fallback: consecutive byte tokens are a *run*; a run that is valid is its text, and one
//!   that is not is one U+FFFD for *every* byte of it, the valid ones too. So its text is
//!   withheld until the run has ended or is broken; [`ByteRuns::whole`]
//!   shows it to the stop matcher meanwhile (the newline of many vocabularies is a byte token).
//!
//! Both cost O(1) a byte, amortized.

/// Stands for an invalid sequence.
const REPLACEMENT: char = '\u{fffd}';

/// One stream of bytes, decoded lossily.
#[derive(Debug, Clone, Default)]
pub struct Lossy {
    /// The beginning of a character.
    held: [u8; 4],
    held_length: u8,
}

impl Lossy {
    /// Appends to `out` the text that is known now.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.held_length > 0 {
            let Some((&byte, rest)) = bytes.split_first() else { return };
            let length = usize::from(self.held_length);
            self.held[length] = byte;
            match std::str::from_utf8(&self.held[..=length]) {
                Ok(char) => {
                    out.push_str(char);
                    self.held_length = 0;
                }
                Err(error) if error.error_len().is_none() => self.held_length += 1,
                Err(_) => {
                    // The byte does not continue the character: the held bytes are a maximal invalid part.
                    out.push(REPLACEMENT);
                    self.held_length = 0;
                    continue;
                }
            }
            bytes = rest;
        }
        loop {
            match std::str::from_utf8(bytes) {
                Ok(text) => return out.push_str(text),
                Err(error) => {
                    let (text, rest) = bytes.split_at(error.valid_up_to());
                    out.push_str(std::str::from_utf8(text).unwrap_or_default());
                    let Some(length) = error.error_len() else {
                        self.held[..rest.len()].copy_from_slice(rest);
                        self.held_length = rest.len() as u8;
                        return;
                    };
                    out.push(REPLACEMENT);
                    bytes = &rest[length..];
                }
            }
        }
    }

    /// Ends the stream: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if std::mem::take(&mut self.held_length) > 0 {
            out.push(REPLACEMENT);
        }
    }
}

/// Text tokens with runs of byte tokens between them.
#[derive(Debug, Clone, Default)]
pub struct ByteRuns {
    /// The run so far, unless it is broken (then it was written out).
    run: Vec<u8>,
    /// How much of `run` is whole characters.
    whole: usize,
    broken: bool,
}

impl ByteRuns {
    /// A byte token.
    pub fn push_byte(&mut self, byte: u8, out: &mut String) {
        if self.broken {
            return out.push(REPLACEMENT);
        }
        self.run.push(byte);
        match std::str::from_utf8(&self.run[self.whole..]) {
            Ok(_) => self.whole = self.run.len(),
            Err(error) if error.error_len().is_none() => {}
            Err(_) => {
                self.replace_run(out);
                self.broken = true;
            }
        }
    }

    /// A text token, which ends the run. An empty one ends it as well.
    pub fn push_text(&mut self, text: &str, out: &mut String) {
        self.finish(out);
        out.push_str(text);
    }

    /// Ends the run.
    pub fn finish(&mut self, out: &mut String) {
        self.broken = false;
        if self.whole < self.run.len() {
            return self.replace_run(out);
        }
        out.push_str(std::str::from_utf8(&self.run).unwrap_or_default());
        self.run.clear();
        self.whole = 0;
    }

    /// Whether nothing is withheld.
    pub fn is_empty(&self) -> bool {
        self.run.is_empty()
    }

    /// The text of the run if it ends here; empty if it ends within a character.
    pub fn whole(&self) -> &[u8] {
        if self.whole < self.run.len() { &[] } else { &self.run }
    }

    fn replace_run(&mut self, out: &mut String) {
        out.extend(self.run.drain(..).map(|_| REPLACEMENT));
        self.whole = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that are often nearly UTF-8: pieces of text, cut anywhere, with strays between them.
    fn nearly_utf8() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "\\PC{0,4}".prop_map(String::into_bytes),
            Just("👩‍👩‍👧‍👦🇩🇪e\u{301}ก็".as_bytes().to_vec()),
            proptest::collection::vec(any::<u8>(), 0..4),
            proptest::collection::vec(0x80..=0xffu8, 0..4),
        ];
        let cut = (piece, any::<prop::sample::Index>()).prop_map(|(mut bytes, index)| {
            bytes.truncate(index.index(bytes.len() + 1));
            bytes
        });
        proptest::collection::vec(cut, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn lossy_in_parts_is_lossy_at_once(bytes in nearly_utf8(), sizes in proptest::collection::vec(1..6usize, 1..8)) {
            let (mut lossy, mut out) = (Lossy::default(), String::new());
            let (mut rest, mut sizes) = (&bytes[..], sizes.into_iter().cycle());
            while !rest.is_empty() {
                let (part, after) = rest.split_at(sizes.next().unwrap().min(rest.len()));
                lossy.push(part, &mut out);
                rest = after;
                // Everything but the beginning of one character is out.
                prop_assert!(lossy.held_length <= 3);
            }
            lossy.finish(&mut out);
            prop_assert_eq!(out, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn runs_read_as_a_whole_or_as_replacements(
            tokens in proptest::collection::vec(
                prop_oneof![
                    3 => prop::sample::select("aé€😀".as_bytes().to_vec()).prop_map(Err),
                    2 => prop::sample::select(vec!["é", "€", "😀", "\n"]).prop_map(|text| Ok((true, text.to_owned()))),
                    1 => "[a-c]{0,2}".prop_map(|text| Ok((false, text))),
                ],
                0..12,
            )
        ) {
            // A stray byte, whole characters as byte tokens, or a text token.
            let mut flat: Vec<std::result::Result<String, u8>> = Vec::new();
            for token in tokens {
                match token {
                    Err(byte) => flat.push(Err(byte)),
                    Ok((true, text)) => flat.extend(text.bytes().map(Err)),
                    Ok((false, text)) => flat.push(Ok(text)),
                }
            }
            // The model: runs gathered first, then read.
            let (mut expected, mut run) = (String::new(), Vec::new());
            let read = |run: &mut Vec<u8>, expected: &mut String| match String::from_utf8(std::mem::take(run)) {
                Ok(text) => expected.push_str(&text),
                Err(error) => expected.extend(error.as_bytes().iter().map(|_| REPLACEMENT)),
            };
            for token in &flat {
                match token {
                    Err(byte) => run.push(*byte),
                    Ok(text) => {
                        read(&mut run, &mut expected);
                        expected.push_str(text);
                    }
                }
            }
            read(&mut run, &mut expected);

            let (mut runs, mut out) = (ByteRuns::default(), String::new());
            for token in &flat {
                match token {
                    Err(byte) => runs.push_byte(*byte, &mut out),
                    Ok(text) => runs.push_text(text, &mut out),
                }
                prop_assert!(expected.starts_with(&out));
            }
            runs.finish(&mut out);
            prop_assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_run_is_shown_before_it_ends() {
        let (mut runs, mut out) = (ByteRuns::default(), String::new());
        for byte in "é".bytes() {
            runs.push_byte(byte, &mut out);
        }
        assert_eq!((runs.whole(), out.as_str()), ("é".as_bytes(), ""));
        runs.push_byte(0xff, &mut out);
        assert_eq!((runs.whole(), out.as_str()), (&b""[..], "���"));
        assert!(runs.is_empty());
    }
}
