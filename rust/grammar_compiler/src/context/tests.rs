//! A small tokenizer for the tests of grammars, and its own.

use super::*;

/// A byte-level tokenizer of all bytes, some words and some special tokens; end token 0.
pub(crate) fn small(words: &[&str]) -> Arc<Tokens> {
    context(words).load().unwrap()
}

pub(crate) fn context(words: &[&str]) -> GrammarContext {
    let mut vocab = serde_json::Map::new();
    let special = ["<|end|>", "<|stop|>", "<tool>", "</tool>"];
    for name in special {
        vocab.insert(name.to_owned(), vocab.len().into());
    }
    for byte in 0..=255u8 {
        vocab.insert(alphabet(byte).to_string(), vocab.len().into());
    }
    for word in words {
        let spelled: String = word.bytes().map(alphabet).collect();
        vocab.insert(spelled, vocab.len().into());
    }
    let size = vocab.len() + 5;
    let added: Vec<_> = (0..)
        .zip(special)
        .map(|(id, content)| {
            serde_json::json!({"id": id, "content": content, "special": true, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocab, "merges": []},
    });
    GrammarContext::from_tokenizer_json(&json.to_string(), &[0, 1], size).unwrap()
}

/// GPT-2's character for a byte.
fn alphabet(byte: u8) -> char {
    let shown = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if shown(&byte) {
        return byte as char;
    }
    let rank = (0..byte).filter(|byte| !shown(byte)).count() as u32;
    char::from_u32(256 + rank).unwrap()
}

#[test]
fn special_tokens_are_no_text() {
    let tokens = small(&["the", " cat"]);
    assert_eq!(tokens.vocab_size(), 4 + 256 + 2 + 5);
    assert_eq!(tokens.special()[0], ("<|stop|>".to_owned(), 1));
    assert_eq!(tokens.special_name(3), Some("</tool>"));
    assert_eq!(tokens.find_special("a<tool>b</tool>"), [(1..7, 2), (8..15, 3)]);
    assert_eq!(tokens.text_bytes(0), b"");
    assert_eq!(tokens.text_bytes(261), b" cat");
    assert_eq!(tokens.text_bytes(265), b"", "a hole");
    assert_eq!(tokens.text_bytes(9999), b"");
    assert_eq!(tokens.byte_token(b'a'), Some(4 + u32::from(b'a')));
    assert_eq!(tokens.byte_token(0xff), None, "no text has it");
    let mut out = Vec::new();
    tokens.tokenize(b"the cat<tool>", &mut out);
    let text: Vec<u8> = out.iter().flat_map(|token| tokens.text_bytes(*token).to_vec()).collect();
    assert_eq!(text, b"the cat<tool>");
    assert!(tokens.has_longer(b"th") && !tokens.has_longer(b"the"));
}

#[test]
fn what_is_wrong_is_said() {
    for (ends, size) in [(&[][..], 5), (&[5], 5), (&[0], 0), (&[0], usize::MAX)] {
        let context = GrammarContext::from_tokenizer_json("{}", ends, size);
        assert!(matches!(context, Err(Error::InvalidArgument(_))));
    }
    let context = GrammarContext::from_tokenizer_json("{}", &[0], 5).unwrap();
    for _ in 0..2 {
        assert!(matches!(context.load(), Err(Error::UnsupportedTokenizer(_))));
    }
}
