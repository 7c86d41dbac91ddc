"""Links of a draft tree, from its mask alone."""

from sgl_kernel import __getattr__  # noqa: F401


def reconstruct_indices_from_tree_mask(
    tree_mask, seq_lens, positions, index, next_token, next_sibling, num_rows, n
):
    for row, mask in enumerate(tree_mask.view(num_rows, n, n).bool().tolist()):
        above = [[other for other in range(node) if mask[node][other]] for node in range(n)]
        parents = [max(nodes, default=-1) for nodes in above]
        for node in range(n):
            positions[row * n + node] = len(above[node]) + int(seq_lens[row])
            index[row, node] = row * n + node
            children = [other for other in range(node + 1, n) if parents[other] == node]
            next_token[row, node] = min(children, default=-1)
            others = [other for other in range(node + 1, n) if parents[other] == parents[node] >= 0]
            next_sibling[row, node] = min(others, default=-1)
