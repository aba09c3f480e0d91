//! How many bytes a message has, and over which elements they are spread.

/// Element lengths of local buffers: empty, single and many, odd, with empty ones among them, and sizes around `mtu`, up to
/// `largest` bytes in all and `max_sge` elements.
pub(super) fn local(mtu: usize, max_sge: usize, largest: usize) -> Vec<Vec<usize>> {
    let many: Vec<usize> = (0..max_sge).map(|index| 2 * index + 1).collect();
    let all = [
        vec![],
        vec![0],
        vec![1],
        vec![3, 0, 5, 0, 0, 7],
        many,
        vec![mtu - 1],
        vec![mtu],
        vec![mtu + 1],
        vec![3 * mtu + 5],
        vec![1, mtu, 2, mtu - 3, 13],
        vec![1 << 20],
    ];
    all.into_iter().filter(|shape| shape.len() <= max_sge && shape.iter().sum::<usize>() <= largest).collect()
}

/// Lengths of inline messages up to `max` bytes.
pub(super) fn inline(max: usize) -> Vec<usize> {
    let mut all = vec![0, 1, 3, max / 2 + 1, max - 1, max];
    all.retain(|&len| len <= max);
    all.dedup();
    all
}

/// Element lengths of a receive for `len` bytes, with a little more room than is needed.
pub(super) fn receive(len: usize, max_sge: usize) -> Vec<usize> {
    match len {
        0 => vec![],
        _ if max_sge < 5 => vec![len + 3],
        _ => vec![1, 0, len / 2, 2, len - len / 2],
    }
}

/// Room for any of the above in one piece of memory, gaps included.
pub(super) fn room(largest: usize) -> usize {
    largest + 4096
}
