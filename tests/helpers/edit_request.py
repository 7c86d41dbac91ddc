"""An edit of a file of 60 lines."""

FILE = "".join(f"    total += weights[{n}] * prices[{n}]\n" for n in range(5, 63))
FILE = f"def invoice(prices, weights, total=0):\n{FILE}    return total\n"
ASK = f"Rename `invoice` to `bill` in this file. Answer with the whole file only:\n\n{FILE}"
