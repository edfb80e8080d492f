"""The ``[elastic]`` table of a recipe: one encoder trained for many depths and widths."""

from typing import Annotated, Literal

from pydantic.dataclasses import dataclass

from s2sent.training.recipe.toml_tables import TABLE, above_0, require


@dataclass(frozen=True, kw_only=True, config=TABLE)
class Elastic:
    """Depths below full and numbers of first features at which embeddings are trained, and how.

    starbucks: every pair of a depth and a dimension in each step, full depth and width included
        (fixed sizes whose losses are summed; Starbucks, arXiv 2410.13230).
    2dmse: in each step one depth and one dimension drawn at random (2DMSE, arXiv 2402.14776 v1).
    align: how far each exit's embedding is from that of full depth: "squared" is the squared error
        of the pooled features, "cosine" 1 - cosine; full depth gets no gradient from it.
    project: multiply what each exit pools by a matrix of its own, which starts as the least-squares
        solution towards the embedding of full depth.
    project_blocks: the matrix reads what is pooled of the exit's other blocks, too.
    exits_only: train the exits' gates and matrices alone; full depth keeps its embeddings.
    project_rank: above 0, each matrix starts as the identity and changes by a product of two of
        this rank, trained at the selector's rate: a residual head on what the exit pools.
    share_selector: weigh every depth's blocks by the gate of full depth.
    """

    depths: list[int]
    dimensions: list[int]
    mode: Literal["starbucks", "2dmse"] = "starbucks"
    align: Literal["none", "squared", "cosine"] = "none"
    align_weight: Annotated[float, above_0("; align = 'none' leaves the term out")] = 1.0
    project: bool = False
    project_blocks: bool = False
    exits_only: bool = False
    project_rank: int = 0
    share_selector: bool = False

    def __post_init__(self) -> None:
        for name, values in (("depths", self.depths), ("dimensions", self.dimensions)):
            rising = values == sorted({*values}) and (not values or values[0] >= 1)
            require(rising, f"{name} = {values} must be rising numbers from 1, each once")
        require(bool(self.depths), "depths = [] must name at least one depth below the backbone's")
        self._check_projections()
        require(
            not (self.exits_only and self.share_selector),
            "exits_only = true trains the gates of exits, which share_selector leaves out: drop one"
            " of them",
        )
        require(
            self.mode != "2dmse" or bool(self.dimensions),
            "mode = '2dmse' draws a dimension: name at least one",
        )

    def _check_projections(self) -> None:
        require(
            self.project_rank >= 0 and (self.project or not self.project_rank),
            f"project_rank = {self.project_rank} must be 0, for whole matrices, or above 0 with"
            " project = true",
        )
        require(
            not self.project_blocks or (self.project and not self.project_rank),
            "project_blocks = true needs project = true, and whole matrices: drop project_rank",
        )
        require(
            not (self.project and self.share_selector),
            "project needs a selector of its own at each exit: drop share_selector",
        )
