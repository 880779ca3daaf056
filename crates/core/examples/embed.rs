//! Compresses three chunks within a program of your own, without the daemon.
//!
//! `cargo run -p thresher-core --example embed -- models/minilm-l6 path/to/libonnxruntime.so`

use thresher_core::Engine;
use thresher_core::domain::{Budget, Chunk, CompressRequest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (model_dir, runtime_lib) =
        args.next().zip(args.next()).ok_or("give the model folder and the ONNX Runtime library")?;
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
        CompressRequest { budget: Budget::Tokens(40), ..CompressRequest::new("What causes tides?", chunks) };
    let compressed = engine.compress(&request)?;
    println!("{}", compressed.context);
    for span in compressed.chunks.iter().flat_map(|chunk| &chunk.spans) {
        println!("{} bytes {}..{}", request.chunks[span.chunk].id, span.source.start, span.source.end);
    }
    Ok(())
}
