//! Fuzz targets, one for each kind of bytes that comes from elsewhere. One program holds all of them, because linking it takes longer
//! than compiling it; the environment variable `THRESHER_FUZZ_TARGET` names the target to run.
#![no_main]

mod service;
mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::{Corpus, fuzz_target};

static TARGET: LazyLock<targets::Target> = LazyLock::new(|| {
    let name = std::env::var("THRESHER_FUZZ_TARGET").unwrap_or_default();
    let target = targets::ALL.iter().find(|(known, _)| *known == name);
    let Some((_, run)) = target else {
        let known: Vec<&str> = targets::ALL.iter().map(|(known, _)| *known).collect();
        panic!("THRESHER_FUZZ_TARGET is {name:?}; the targets are {}", known.join(", "))
    };
    *run
});

fuzz_target!(|data: &[u8]| -> Corpus { TARGET(data) });
