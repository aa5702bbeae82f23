//! Postgres's own hash functions, on the bytes that its row filters hash: `hashtext`, `uuid_hash` and `hashint8`.
//!
//! They are Bob Jenkins's lookup3 with Postgres's start value. Words are little-endian, as on the processors of the servers.

/// Added to the length of the input (Postgres, `hash_bytes`).
const START: u32 = 0x9e37_79b9_u32.wrapping_add(3_923_095);

/// `hashtext(value)` with a deterministic collation, or `uuid_hash(value)` of the sixteen bytes.
pub(super) fn bytes(value: &[u8]) -> u32 {
    // as in Postgres, where lengths have 32 bits
    let start = START.wrapping_add(value.len() as u32);
    let mut state = [start; 3];
    let (blocks, rest) = value.as_chunks::<12>();
    for block in blocks {
        add(&mut state, block);
        mix(&mut state);
    }
    let (words, last) = rest.split_at(rest.len().min(8));
    add(&mut state, words);
    // the lowest byte of the third word stays free
    let [_, _, c] = &mut state;
    for (place, byte) in last.iter().enumerate() {
        *c = c.wrapping_add(u32::from(*byte) << (8 * (place + 1)));
    }
    end(state)
}

/// `hashint8(value)`, which equals `hashint4` and `hashint2` for values that fit them.
pub(super) fn integer(value: i64) -> u32 {
    let (low, high) = (value as u32, (value >> 32) as u32);
    let folded = low ^ if value >= 0 { high } else { !high };
    let start = START.wrapping_add(4);
    end([start.wrapping_add(folded), start, start])
}

fn add(state: &mut [u32; 3], bytes: &[u8]) {
    for (word, four) in state.iter_mut().zip(bytes.chunks(4)) {
        let number = four.iter().rev().fold(0, |number: u32, byte| number << 8 | u32::from(*byte));
        *word = word.wrapping_add(number);
    }
}

fn mix([a, b, c]: &mut [u32; 3]) {
    let step = |x: &mut u32, y: &mut u32, z: u32, by: u32| {
        *x = x.wrapping_sub(*y) ^ y.rotate_left(by);
        *y = y.wrapping_add(z);
    };
    step(a, c, *b, 4);
    step(b, a, *c, 6);
    step(c, b, *a, 8);
    step(a, c, *b, 16);
    step(b, a, *c, 19);
    step(c, b, *a, 4);
}

fn end([mut a, mut b, mut c]: [u32; 3]) -> u32 {
    let step = |x: &mut u32, y: u32, by: u32| *x = (*x ^ y).wrapping_sub(y.rotate_left(by));
    step(&mut c, b, 14);
    step(&mut a, c, 11);
    step(&mut b, a, 25);
    step(&mut c, b, 16);
    step(&mut a, c, 4);
    step(&mut b, a, 14);
    step(&mut c, b, 24);
    c
}
