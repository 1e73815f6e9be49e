"""An app in which a run fails at its last step in the first life, and ends well in the second."""

from __future__ import annotations

from dataclasses import dataclass, field

from effectflow import Checkpoints, Effect, ask, fail, pure, step


@dataclass
class World:
    """What the steps act on. In the first life it is broken."""

    done: list[str] = field(default_factory=list[str])
    is_broken: bool = True


@dataclass(frozen=True)
class App:
    checkpoints: Checkpoints
    world: World = field(default_factory=World)


@step
def last() -> Effect[App, str, None]:
    """Fails in the first life and succeeds in the next."""

    def look(app: App) -> Effect[object, str, None]:
        return fail("crash here") if app.world.is_broken else pure(None)

    return ask(App).and_then(look)
