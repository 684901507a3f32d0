//! What is remembered of arrays, written item by item.

use super::*;

fn write(memories: &mut Memories, memory: MemoryId, text: &str) -> MemoryId {
    text.bytes().fold(memory, |memory, byte| memories.with(memory, byte))
}

/// Writes items one after the other, from the array's beginning.
fn items(memories: &mut Memories, memory: MemoryId, texts: &[&str]) -> Option<MemoryId> {
    let mut memory = memories.array(memory);
    for (at, text) in texts.iter().enumerate() {
        if at > 0 {
            memory = write(memories, memory, ", ");
            memory = memories.item(memory);
        }
        memory = write(memories, memory, text);
        memory = memories.ended(memory)?;
    }
    Some(memory)
}

#[test]
fn a_value_comes_once_however_it_is_written() {
    let mut memories = Memories::default();
    let all = ["\"a\"", "\"b\"", "1", "\"1\"", "[]", "{\"a\": [1], \"b\": 2}"];
    let memory = items(&mut memories, NOTHING, &all).unwrap();
    for text in ["\"\\u0061\"", "\"b\"", "1.0", "[ ]", "{\"b\": 2e0, \"a\": [1]}"] {
        let texts: Vec<_> = all.iter().copied().chain([text]).collect();
        assert_eq!(items(&mut memories, NOTHING, &texts), None, "{text}");
    }
    assert_eq!(items(&mut memories, NOTHING, &all), Some(memory), "an equal array is the same entry");
}

#[test]
fn what_an_item_may_become_is_known() {
    let mut memories = Memories::default();
    let all = ["\"abc\"", "\"abd\"", "\"x\"", "12", "{\"a\": 1, \"b\": 2}", "[1, 2]"];
    let memory = items(&mut memories, NOTHING, &all).unwrap();
    let memory = write(&mut memories, memory, ", ");
    let before = memories.item(memory);
    for (text, likely) in [
        ("", 6),
        ("\"", 3),
        ("\"ab", 2),
        ("\"abc", 1),
        ("\"abc\"", 1),
        ("\"ab\"", 0),
        ("\"\\u0061", 2),
        ("9", 1),
        ("t", 0),
        ("{", 1),
        ("{\"b\": 2", 1),
        ("{\"b\": 2, \"c", 0),
        ("[1", 1),
        ("[2,", 0),
    ] {
        let memory = write(&mut memories, before, text);
        let found: usize = memories.repeats(memory).iter().map(|repeat| repeat.values.len()).sum();
        assert_eq!(found, likely, "{text}");
        assert_eq!(memories.may_repeat(memory), likely > 0, "{text}");
    }
}

#[test]
fn an_array_within_an_item_is_a_part_of_it() {
    let mut memories = Memories::default();
    let outer = memories.array(NOTHING);
    let item = write(&mut memories, outer, "{\"a\": [");
    let inner = items(&mut memories, item, &["1", "[2]"]).unwrap();
    assert!(!memories.may_repeat(inner));
    let item = write(&mut memories, inner, "]}");
    let outer = memories.ended(item).unwrap();
    let outer = write(&mut memories, outer, ", ");
    let outer = memories.item(outer);
    let item = write(&mut memories, outer, "{\"a\": [");
    for (texts, rest, repeats) in [
        (&["1", "[2]"][..], "]", true),
        (&["1", "[2]", "3"], "]", false),
        (&["1"], "", true),
        (&["1"], "]", false),
        (&["[2]"], "", false),
    ] {
        let inner = items(&mut memories, item, texts).unwrap();
        let memory = write(&mut memories, inner, rest);
        assert_eq!(memories.may_repeat(memory), repeats, "{texts:?} {rest}");
    }
    let inner = items(&mut memories, item, &["1", "[2]"]).unwrap();
    let item = write(&mut memories, inner, "]}");
    assert_eq!(memories.ended(item), None);
    // The inner array's end is the outer one's, too.
    let outer = memories.array(NOTHING);
    let item = write(&mut memories, outer, "[");
    let inner = items(&mut memories, item, &[]).unwrap();
    let item = write(&mut memories, inner, "]");
    let outer = memories.ended(item).unwrap();
    assert_eq!(write(&mut memories, outer, "]"), NOTHING);
}

#[test]
fn what_is_nested_too_deeply_is_said() {
    let mut memories = Memories::default();
    let item = memories.array(NOTHING);
    let deep = write(&mut memories, item, &"[".repeat(MAX_DEPTH as usize));
    assert!(matches!(memories.stage(deep), Stage::Open));
    let inner = memories.array(deep);
    let deeper = write(&mut memories, inner, "{");
    assert!(matches!(memories.stage(deeper), Stage::TooDeep));
}
