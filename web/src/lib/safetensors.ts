// Reads the safetensors format (https://github.com/huggingface/safetensors): a header in JSON, then the tensors.

export interface SafetensorsFile {
  metadata: Record<string, string>;
  /** The values of a tensor of type I32. Throws if there is none of this name. */
  int32(name: string): Int32Array;
}

/** The largest header that is read, as in the format's own library. */
const HEADER_BYTES_MAX = 100_000_000;

export function parseSafetensors(file: ArrayBuffer): SafetensorsFile {
  if (file.byteLength < 8) throw new Error("The file is too short to be a safetensors file.");
  const length = Number(new DataView(file).getBigUint64(0, true));
  if (length > HEADER_BYTES_MAX || 8 + length > file.byteLength) throw new Error("The file has no safetensors header.");
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, length)));
  const { __metadata__: metadata = {}, ...tensors } = header;
  return {
    metadata,
    int32(name) {
      const tensor = tensors[name];
      if (!tensor) throw new Error(`The file has no tensor ${name}.`);
      if (tensor.dtype !== "I32") throw new Error(`The tensor ${name} has the type ${tensor.dtype}, not I32.`);
      const [start, end] = tensor.data_offsets;
      if (!(start >= 0 && start <= end && 8 + length + end <= file.byteLength && (end - start) % 4 === 0)) {
        throw new Error(`The tensor ${name} is outside of the file.`);
      }
      // The data need not be aligned, and the format is little-endian as every platform with browsers is.
      return new Int32Array(file.slice(8 + length + start, 8 + length + end));
    },
  };
}
