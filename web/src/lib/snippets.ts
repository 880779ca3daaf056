// The request of the Compress view as a program that a developer can copy.
import type { CompressRequest } from "./api";

export const LANGUAGES = ["curl", "Python", "TypeScript"] as const;
export type Language = (typeof LANGUAGES)[number];

export interface SnippetInput {
  /** The address of the daemon, without a slash at its end. */
  url: string;
  request: CompressRequest;
  isKeyed: boolean;
}

export function snippet(language: Language, input: SnippetInput): string {
  return { curl, Python: python, TypeScript: typescript }[language](input);
}

function curl({ url, request, isKeyed }: SnippetInput): string {
  // Within single quotes a shell changes nothing, and a single quote itself cannot be there.
  const json = JSON.stringify(request, null, 2).replaceAll("'", `'\\''`);
  const key = isKeyed ? ` \\\n  -H "Authorization: Bearer $THRESHER_API_KEY"` : "";
  return `curl -s ${url}/v1/compress${key} --json '${json}'\n`;
}

function python({ url, request: { query, chunks, ...options }, isKeyed }: SnippetInput): string {
  const key = isKeyed ? `, api_key=os.environ["THRESHER_API_KEY"]` : "";
  const named = Object.entries(options).map(([name, value]) => `        ${name}=${pythonValue(value)},\n`);
  const list = chunks.map((chunk) => `    ${pythonValue(chunk)},\n`).join("");
  return `${isKeyed ? "import os\n\n" : ""}from thresher_client import Client

CHUNKS = [
${list}]

with Client(${pythonValue(url)}${key}) as client:
    found = client.compress(
        ${pythonValue(query)},
        CHUNKS,
${named.join("")}    )

print(found.context)
`;
}

function typescript({ url, request, isKeyed }: SnippetInput): string {
  const key = isKeyed ? `\n    authorization: \`Bearer \${process.env.THRESHER_API_KEY}\`,` : "";
  // Offsets in UTF-16 code units are those of JavaScript's strings.
  const body = JSON.stringify({ ...request, offsets: "utf16" }, null, 2).replaceAll("\n", "\n  ");
  return `const response = await fetch(${JSON.stringify(`${url}/v1/compress`)}, {
  method: "POST",
  headers: {
    "content-type": "application/json",${key}
  },
  body: JSON.stringify(${body}),
});
const answer = await response.json();
if (!response.ok) throw new Error(\`\${answer.error.code}: \${answer.error.message}\`);
console.log(answer.context);
`;
}

/** A JSON value as a Python literal. Strings of JSON are strings of Python, too. */
function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonValue(item)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
