"""A grammar of children's stories: what the storyteller learns from.

`names`, `kinds`, `places`, `things` and `traits` are the world: who and what there is, and what fits
together. `cast` chooses from it for one story. `shapes` is how a sentence is written in many ways,
`scenes` the sentences that plots share, `plots` the plots, one module each. `story` puts it together;
`consistency` judges whether a text, the grammar's or a model's, stays with its hero.

    >>> story = write_story(random.Random(7))
    >>> consistency(story.text, story.hero, story.object).holds
    True
"""

from sovereign_lab.recipes.storyteller.grammar.consistency import Consistency, consistency
from sovereign_lab.recipes.storyteller.grammar.story import Story, combinations, write_story

__all__ = ["Consistency", "Story", "combinations", "consistency", "write_story"]
