//! Fuzzes the audit entry of `tenure_apiserver::fuzzing`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tenure_apiserver::fuzzing::audit(bytes));
