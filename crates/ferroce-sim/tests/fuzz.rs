//! The fuzzers' targets without a fuzzer: over the corpus in `/fuzz/corpus`, over that with bytes changed, and over random bytes.

use ferroce_sim::fuzz::{TARGETS, Target};
use ferroce_soft::memory::Random;
use std::path::{Path, PathBuf};

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

fn check(name: &str, target: Target, input: &[u8], what: &str) {
    if let Err(why) = target(input) {
        panic!("{name}: {what}: {why}\ninput: {input:02x?}");
    }
}

fn random_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    (0..random.below(most)).map(|_| random.next_u64() as u8).collect()
}

#[test]
fn corpora() {
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        assert!(!corpus.is_empty(), "{name} has no corpus");
        for (path, input) in corpus {
            check(name, target, &input, &path.display().to_string());
        }
    }
}

#[test]
fn corpora_with_bytes_changed() {
    let rounds = if cfg!(debug_assertions) { 1000 } else { 5000 };
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        for seed in 0..rounds {
            let mut random = Random::new(seed);
            let (path, input) = random.pick(&corpus);
            let mut input = input.clone();
            for _ in 0..random.within(1, 8) {
                let at = random.below(input.len() as u64 + 1) as usize;
                match (random.below(4), input.get_mut(at)) {
                    (0, Some(_)) => drop(input.remove(at)),
                    (1, Some(byte)) => *byte ^= 1 << random.below(8),
                    (2, Some(byte)) => *byte = random.next_u64() as u8,
                    _ => input.insert(at, random.next_u64() as u8),
                }
            }
            check(name, target, &input, &format!("{} changed with seed {seed}", path.display()));
        }
    }
}

#[test]
fn random_inputs() {
    let rounds = if cfg!(debug_assertions) { 2000 } else { 10_000 };
    for (name, target) in TARGETS {
        for seed in 0..rounds {
            let input = random_bytes(&mut Random::new(seed), 1500);
            check(name, target, &input, &format!("random bytes of seed {seed}"));
        }
    }
}
