// A table with a row of column heads, which scrolls where it is wider than the page.
import type { ComponentChildren } from "preact";

/** A column of text, by its head; or one of numbers, which stand at the right. */
type Column = string | { number: string; title?: string };

export function Table({ columns, children }: { columns: readonly Column[]; children: ComponentChildren }) {
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>
            {columns.map((column) =>
              typeof column === "string" ? (
                <th key={column} scope="col">
                  {column}
                </th>
              ) : (
                <th key={column.number} scope="col" class="num" title={column.title}>
                  {column.number}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
