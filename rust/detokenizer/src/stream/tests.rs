//! However tokens are grouped, a stream's text is what decoding all of them at once and searching that would give; and
//! nothing that is out is taken back.

use proptest::prelude::*;

use super::*;

/// Byte-level; token = byte, then a special one, a hole, and one of two characters and a half.
fn bytes() -> Arc<Vocabulary> {
    let table = (0u32..0x144).filter_map(char::from_u32).filter_map(|char| {
        let vocabulary = format!(
            r#"{{"decoder": {{"type": "ByteLevel"}}, "model": {{"vocab": {{{:?}: 0}}}}}}"#,
            char.to_string()
        );
        let vocabulary = Vocabulary::from_tokenizer_json(&vocabulary).ok()?;
        match vocabulary.token_bytes(0)? {
            [byte] => Some((char, *byte)),
            _ => None,
        }
    });
    let mut entries: Vec<_> =
        table.map(|(char, byte)| format!("{}: {byte}", serde_json::to_string(&char).unwrap())).collect();
    entries.push(r#""éĠab": 258"#.into());
    let json = format!(
        r#"{{"added_tokens": [{{"id": 256, "content": "<|x|>", "special": true}}], "decoder": {{"type": "ByteLevel"}},
            "model": {{"vocab": {{{}}}}}}}"#,
        entries.join(", ")
    );
    Arc::new(Vocabulary::from_tokenizer_json(&json).unwrap())
}

/// Byte fallback as Llama has it; token = byte for 0..256, then a special one, a hole, text tokens.
fn fallback() -> Arc<Vocabulary> {
    let mut entries: Vec<_> = (0..256).map(|byte| format!(r#""<0x{byte:02X}>": {byte}"#)).collect();
    entries.extend(
        [r#""▁": 258"#, r#""▁a": 259"#, r#""b": 260"#, r#""": 261"#, r#""é▁": 262"#].map(String::from),
    );
    let json = format!(
        r#"{{"added_tokens": [{{"id": 256, "content": "</s>", "special": true}}],
            "decoder": {{"type": "Sequence", "decoders": [
                {{"type": "Replace", "pattern": {{"String": "▁"}}, "content": " "}}, {{"type": "ByteFallback"}},
                {{"type": "Fuse"}}, {{"type": "Strip", "content": " ", "start": 1, "stop": 0}}]}},
            "model": {{"vocab": {{{}}}}}}}"#,
        entries.join(", ")
    );
    Arc::new(Vocabulary::from_tokenizer_json(&json).unwrap())
}

fn stream(vocabulary: &Arc<Vocabulary>, stops: &[&str], include: bool) -> Stream {
    let stops: Vec<_> = stops.iter().map(ToString::to_string).collect();
    let compiled = (!stops.is_empty()).then(|| Arc::new(StopStrings::new(&stops).unwrap()));
    Stream::new(vocabulary.clone(), compiled, include, true)
}

/// The text of the whole, as `tokenizers` would decode it.
fn decode(vocabulary: &Vocabulary, tokens: &[u32]) -> String {
    let mut pieces = tokens
        .iter()
        .filter(|token| !vocabulary.is_special(**token))
        .filter_map(|token| vocabulary.piece(*token, false))
        .peekable();
    if vocabulary.rules().byte_level {
        let bytes: Vec<u8> = pieces
            .flat_map(|piece| match piece {
                Piece::Bytes(bytes) => bytes.to_vec(),
                Piece::Byte(_) => unreachable!(),
            })
            .collect();
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let mut text = String::new();
    while let Some(piece) = pieces.next() {
        match piece {
            Piece::Bytes(bytes) => text.push_str(std::str::from_utf8(bytes).unwrap()),
            Piece::Byte(byte) => {
                let mut run = vec![byte];
                while let Some(Piece::Byte(byte)) = pieces.peek() {
                    run.push(*byte);
                    pieces.next();
                }
                match String::from_utf8(run) {
                    Ok(run) => text.push_str(&run),
                    Err(error) => text.extend(error.as_bytes().iter().map(|_| '\u{fffd}')),
                }
            }
        }
    }
    text.strip_prefix(' ').map(String::from).unwrap_or(text)
}

/// The first token with which the whole text has a stop string; then (tokens, text, index).
///
/// A character that is not whole yet is no U+FFFD until the end.
fn model(
    vocabulary: &Vocabulary,
    tokens: &[u32],
    stops: &[String],
    include: bool,
) -> (usize, String, Option<usize>) {
    for count in 1..=tokens.len() {
        let text = decode(vocabulary, &tokens[..count]);
        let found = text.char_indices().map(|(at, char)| at + char.len_utf8()).find_map(|end| {
            let matches = (0..stops.len()).filter(|index| text[..end].ends_with(&stops[*index]));
            matches
                .max_by_key(|index| (stops[*index].len(), std::cmp::Reverse(*index)))
                .map(|index| (end, index))
        });
        if let Some((end, index)) = found {
            return (
                count,
                text[..if include { end } else { end - stops[index].len() }].to_owned(),
                Some(index),
            );
        }
    }
    (tokens.len(), decode(vocabulary, tokens), None)
}

fn run(mut stream: Stream, tokens: &[u32], sizes: &[usize]) -> (usize, String, Option<usize>) {
    let (mut text, mut taken, mut sizes) = (String::new(), 0, sizes.iter().cycle());
    while taken < tokens.len() {
        let size = (*sizes.next().unwrap()).min(tokens.len() - taken);
        if let Some(found) = stream.push(&tokens[taken..taken + size], &mut text) {
            assert_eq!(stream.push(tokens, &mut text), None);
            assert_eq!(stream.finish(&mut text), None);
            return (taken + found.tokens, text, Some(found.index));
        }
        taken += size;
    }
    let found = stream.finish(&mut text);
    (taken, text, found.map(|found| found.index))
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    let text = prop::sample::select(vec!["é", "a", " ", "€", "😀", "b\n", "\n"]);
    let text = text.prop_map(|text| text.bytes().map(u32::from).collect());
    let stray =
        prop::sample::select(vec![0xe2, 0x82, 0xff, 0x20, 256, 257]).prop_map(|token: u32| vec![token]);
    let token = (258..264u32).prop_map(|token| vec![token]);
    proptest::collection::vec(prop_oneof![4 => text, 1 => stray, 3 => token], 0..12)
        .prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn equals_the_whole_however_it_is_grouped(
        kind in any::<bool>(),
        tokens in tokens(),
        stops in proptest::collection::vec("[ab é\n]{1,3}", 0..3),
        include in any::<bool>(),
        sizes in proptest::collection::vec(1..5usize, 1..5),
    ) {
        let vocabulary = if kind { bytes() } else { fallback() };
        let borrowed: Vec<_> = stops.iter().map(String::as_str).collect();
        let expected = model(&vocabulary, &tokens, &stops, include);
        prop_assert_eq!(&run(stream(&vocabulary, &borrowed, include), &tokens, &sizes), &expected);
        prop_assert_eq!(&run(stream(&vocabulary, &borrowed, include), &tokens, &[usize::MAX]), &expected);
    }
}

proptest! {
    #[test]
    fn a_token_is_placed_behind_the_text_before_it(
        kind in any::<bool>(),
        tokens in tokens(),
        stops in proptest::collection::vec("[ab é\n]{1,3}", 0..3),
        sizes in proptest::collection::vec(1..5usize, 1..5),
    ) {
        let vocabulary = if kind { bytes() } else { fallback() };
        let borrowed: Vec<_> = stops.iter().map(String::as_str).collect();
        let mut placed = stream(&vocabulary, &borrowed, false);
        placed.keep_places();
        let (mut places, mut text, mut sizes) = (Vec::new(), String::new(), sizes.iter().cycle());
        let mut rest = &tokens[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
            let found = placed.push(now, &mut text);
            let count = found.map_or(now.len(), |found| found.tokens);
            prop_assert_eq!(placed.places().len(), count);
            places.extend_from_slice(placed.places());
            if found.is_some() {
                break;
            }
            rest = later;
        }
        let mut before = stream(&vocabulary, &[], false);
        let mut text = String::new();
        for (token, place) in tokens.iter().zip(&places) {
            let characters = text.chars().count() as i32;
            let skipped = vocabulary.is_special(*token) || vocabulary.piece(*token, false).is_none();
            let textual = matches!(vocabulary.piece(*token, false), Some(Piece::Bytes(_)));
            before.push(&[*token], &mut text);
            if skipped {
                prop_assert_eq!(*place, -1);
            } else if kind || !textual {
                prop_assert_eq!(*place, characters);
            } else {
                // Behind the run of bytes that it has ended.
                let own = decode(&vocabulary, &[260, *token]).chars().count() as i32 - 1;
                let after = text.chars().count() as i32;
                prop_assert_eq!(*place, characters.max(after - own));
            }
        }
    }
}

#[test]
fn half_a_character_and_half_a_stop_string_stay_inside() {
    let vocabulary = bytes();
    let mut stream = stream(&vocabulary, &["b€c"], false);
    let mut out = Vec::new();
    for byte in "ab€d".bytes() {
        let mut text = String::new();
        assert_eq!(stream.push(&[byte.into()], &mut text), None);
        out.push(text);
    }
    assert_eq!(out, ["a", "", "", "", "", "b€d"]);
}

#[test]
fn a_newline_of_byte_fallback_stops_at_its_own_token() {
    let vocabulary = fallback();
    let mut stream = stream(&vocabulary, &["\n"], true);
    let mut text = String::new();
    assert_eq!(stream.push(&[260, 10, 260], &mut text), Some(StopMatch { index: 0, tokens: 2 }));
    assert_eq!(text, "b\n");
}

#[test]
fn an_unfinished_character_at_the_end_is_a_replacement() {
    let vocabulary = bytes();
    let mut stream = stream(&vocabulary, &["\u{fffd}"], false);
    let mut text = String::new();
    assert_eq!(stream.push(&[0x61, 0xe2, 0x82], &mut text), None);
    assert_eq!(stream.finish(&mut text), Some(StopMatch { index: 0, tokens: 0 }));
    assert_eq!(text, "a");
}
