#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ferroce_sim::fuzz::ud(data).unwrap());
