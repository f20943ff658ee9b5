"""The cloud's tree of drafts holds exactly the nodes that may still come true, whatever came before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acespec.cloud_verifier.draft_tree import TIP, DraftTree
from acespec.wire import Draft, DraftNode

EVERYTHING = 10_000
Text = tuple[int, ...]


class EveryNode:
    """The slow way: the whole text that each node ever sent stands for."""

    def __init__(self) -> None:
        self.texts: dict[int, Text] = {}

    def add(self, draft: Draft, committed: list[int]) -> None:
        for node_id, node in enumerate(draft.nodes, draft.first_id):
            if self.texts and node_id <= max(self.texts):
                continue
            before: Text | None = None
            if node.parent is not None:
                before = self.texts.get(node.parent)
            elif draft.root < len(committed):
                before = tuple(committed[: draft.root + 1])
            self.texts[node_id] = () if not before else (*before, node.token)

    def alive(self, committed: list[int]) -> set[Text]:
        length = len(committed)
        return {
            text for text in self.texts.values() if len(text) > length and list(text[:length]) == committed
        }


def texts_of(tree: DraftTree, committed: list[int]) -> list[Text]:
    branches = tree.select(EVERYTHING, EVERYTHING)
    texts: list[Text] = []
    for token, parent in zip(branches.tokens, branches.parents, strict=True):
        texts.append((*(committed if parent == TIP else texts[parent]), token))
    return texts


tokens = st.integers(0, 2)
shapes = st.lists(
    st.tuples(tokens, st.none() | st.integers(1, 6)), min_size=1, max_size=8
)  # a token, and how far back its parent is
events = st.lists(
    st.tuples(shapes, st.integers(-3, 1), st.integers(-2, 2)) | st.lists(tokens, min_size=1, max_size=3),
    max_size=12,
)


@given(events)
def test_the_tree_holds_what_may_still_come_true(happens: list[object]) -> None:
    committed = [0, 1, 2]
    tree, every, next_id = DraftTree(committed, EVERYTHING), EveryNode(), 0
    for event in happens:
        if isinstance(event, list):
            committed += event
            tree.advance()
        else:
            assert isinstance(event, tuple)
            shape, root_offset, skew = event
            first_id = max(0, next_id + skew)  # sent twice in part, or with a gap
            root = max(0, len(committed) - 1 + root_offset)
            nodes = [
                DraftNode(token, None if back is None or back > first_id + k else first_id + k - back)
                for k, (token, back) in enumerate(shape)
            ]
            draft = Draft(0, first_id, root, tuple(nodes))
            before = len(tree)
            assert tree.add(draft) == len(tree) - before
            every.add(draft, committed)
            next_id = max(next_id, first_id + len(nodes))
        texts = texts_of(tree, committed)
        assert len(set(texts)) == len(texts) == len(tree)
        assert set(texts) == every.alive(committed)


def chain(first_id: int, root: int, *tokens: int) -> Draft:
    nodes = [DraftNode(token, first_id + k - 1 if k else None) for k, token in enumerate(tokens)]
    return Draft(0, first_id, root, tuple(nodes))


def test_what_comes_late_may_still_be_right_further_down() -> None:
    committed = [5]
    tree = DraftTree(committed, 10)
    committed += [6, 7]
    tree.advance()
    assert tree.add(chain(0, 0, 6, 7, 8, 9)) == 2
    assert tree.select(9, 99).tokens == (8, 9)
    assert tree.add(Draft(0, 4, 0, (DraftNode(4, 1),))) == 1, "below a node that came true"


def test_nodes_go_in_the_order_sent_and_none_beyond_the_bound() -> None:
    tree = DraftTree([5], 10)
    tree.add(Draft(0, 0, 0, (DraftNode(1), DraftNode(2), DraftNode(3, 0), DraftNode(4, 2), DraftNode(5, 1))))
    assert tree.select(9, 99).tokens == (1, 2, 3, 4, 5)
    assert tree.select(9, 99).parents == (TIP, TIP, 0, 2, 1)
    assert tree.select(2, 99).tokens == (1, 2)
    assert tree.select(9, 2).tokens == (1, 2, 3, 5)
    assert tree.select(9, 0).tokens == ()


def test_a_full_tree_drops_what_comes_and_takes_on_again_once_there_is_room() -> None:
    committed = [5]
    tree = DraftTree(committed, 3)
    assert tree.add(chain(0, 0, 1, 2, 3, 4, 5)) == 3
    committed += [1, 2]
    tree.advance()
    assert len(tree) == 1
    assert tree.add(Draft(0, 5, 0, (DraftNode(4, 3),))) == 0, "its parent was dropped"
    assert tree.add(Draft(0, 6, 0, (DraftNode(4, 2),))) == 1


@given(st.integers(1, 6), st.lists(shapes, max_size=20))
def test_it_never_holds_more_than_it_may(most: int, sent: list[list[tuple[int, int | None]]]) -> None:
    committed, first_id = [0], 0
    tree = DraftTree(committed, most)
    for shape in sent:
        nodes = [
            DraftNode(token, None if back is None or back > first_id + k else first_id + k - back)
            for k, (token, back) in enumerate(shape)
        ]
        tree.add(Draft(0, first_id, len(committed) - 1, tuple(nodes)))
        first_id += len(nodes)
        assert len(tree) + len(tree._twins) <= most
        committed.append(0)
        tree.advance()
        assert len(tree._passed) <= most
