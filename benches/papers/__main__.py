"""The papers' ablations as tables: `make bench-papers ARGS="rest-match --transcripts ..."`.

Parts named by a paper's answers need `--transcripts` and `--datastore`; `n-grammys` and `hsddw`
take the demo's model and what it writes. Acceptance is the same on every machine; `slow-down` and
`speed` are times of this one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from papers import hsddw, n_grammys, retrieval
from papers.answers import Setup, markdown

PARTS = {
    "rest-match": ("REST, figure 3", retrieval.rest_match),
    "rest-selection": ("REST, table 3", retrieval.rest_selection),
    "aded-adaptive": ("ADED, figure 4a", retrieval.aded_adaptive),
    "aded-by-position": ("ADED, figure 4a, by the tokens written", retrieval.aded_by_position),
    "aded-tasks": ("ADED, figure 4b", retrieval.aded_tasks),
    "aded-sampling": ("ADED, figure 5, on the demo", retrieval.aded_sampling),
    "aded-searches": ("ADED, figure 6", retrieval.aded_searches),
    "aded-exploration": ("ADED, figure 7", retrieval.aded_exploration),
    "aded-corpus": ("ADED, table 2", retrieval.aded_corpus),
    "n-grammys-context": ("N-Grammys, footnote 4, the context", retrieval.n_grammys_query),
    "n-grammys-query": ("N-Grammys, footnote 4, on the demo", n_grammys.query),
    "n-grammys-slow-down": ("N-Grammys, figure 1, on the demo", n_grammys.slow_down),
    "n-grammys-top-k": ("N-Grammys, figure 2, on the demo", n_grammys.top_k),
    "n-grammys-speed": ("N-Grammys, figures 3 and 8, on the demo", n_grammys.speed),
    "n-grammys-mixed": ("N-Grammys, figure 4, on the demo", n_grammys.mixed),
    "n-grammys-grid": ("N-Grammys, figure 5, on the demo", n_grammys.grid),
    "hsddw-acceptance": ("HSDDW, figure 1, on the demo", hsddw.acceptance),
    "hsddw-entropy": ("HSDDW, figure 6, on the demo", hsddw.entropy),
    "hsddw-windows": ("HSDDW, figure 7, on the demo", hsddw.windows),
    "hsddw-one-answer": ("HSDDW, figure 8, on the demo", hsddw.one_answer),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--transcripts", nargs="+", type=Path, default=[])
    parser.add_argument("--datastore", nargs="+", type=Path, default=[])
    parser.add_argument("--tokenizer", help="of the transcripts; by default the datastore's")
    parser.add_argument("--prompts", type=int, default=24, help="that the demo's model completes")
    parser.add_argument("--new-tokens", type=int, default=128)
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: choose of {', '.join(PARTS)}")
    setup = Setup(
        options.transcripts,
        options.datastore,
        options.tokenizer,
        options.prompts,
        options.new_tokens,
    )
    for part in options.parts or PARTS:
        title, rows = PARTS[part]
        print(f"\n**{title}** (`{part}`)\n\n{markdown([*rows(setup)])}", flush=True)


if __name__ == "__main__":
    main()
