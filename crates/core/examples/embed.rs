//! Compresses three chunks in its own process, without the daemon. It takes the model folder and the library
//! of ONNX Runtime as arguments:
//!
//! `cargo run -p thresher-core --example embed -- models/minilm-l6 path/to/libonnxruntime.so`

use thresher_core::Engine;
use thresher_core::domain::{Budget, Chunk, CompressRequest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (model_dir, runtime_lib) =
        args.next().zip(args.next()).ok_or("usage: embed MODEL_FOLDER ONNX_RUNTIME_LIBRARY")?;
    let engine = Engine::builder(model_dir, runtime_lib).build()?;
    let chunks = vec![
        Chunk::new(
            "tides",
            "Tides are caused by the Moon. They come twice a day. Harbours plan around them.",
        ),
        Chunk::new("bread", "Bread needs flour, water, salt and yeast."),
        Chunk::new("sun", "The Sun pulls the sea as well, about half as much as the Moon does."),
    ];
    let request =
        CompressRequest { budget: Budget::tokens(40), ..CompressRequest::new("What causes tides?", chunks) };
    let compressed = engine.compress(&request)?;
    // The compressed context is the input of a language model.
    println!("{}", compressed.context);
    // Each kept span is a byte range of a chunk's text.
    for span in compressed.chunks.iter().flat_map(|chunk| &chunk.spans) {
        println!("{} bytes {}..{}", request.chunks[span.chunk].id, span.source.start, span.source.end);
    }
    Ok(())
}
