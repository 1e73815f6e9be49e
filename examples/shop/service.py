"""The orders over HTTP: place, follow, approve and cancel them.

    cd examples && uvicorn shop.service:api

A request is answered once the order or decision is durable. A worker in the same process does the rest,
now or after a restart. Any number of these processes may share the orders.

Environment variables: SHOP_STORE is the URL of the store, and SHOP_LEDGER the file of the simulated bank
and warehouse. SHOP_SECONDS makes these slow, so that you can kill the process while they work: with
'{"charge": 60}', the answer to a charge takes a minute.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeAlias
from uuid import uuid4

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from returns.pipeline import is_successful

from effectflow import App, CheckpointError, Checkpoints, Client, Handle, RunStatus, Worker
from effectflow.checkpoint import RunConflict, RunEnded, RunNotFound, SaveFailed, StoreUnavailable
from effectflow.effects import Clock
from effectflow.stores import open_store
from shop.orders import Decision, Order, Refusal, Shipped, Shop, approval, fulfil
from shop.partners import LedgerBank, LedgerWarehouse, SqliteLedger

routes = APIRouter(prefix="/orders")


def client_of(request: Request) -> Client:
    client: Client = request.app.state.client
    return client


AnyClient: TypeAlias = Annotated[Client, Depends(client_of)]
Key: TypeAlias = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[\w-]{1,64}$")]


class Accepted(BaseModel):
    id: str


class View(BaseModel):
    """An order, as customers see it."""

    id: str
    status: RunStatus
    progress: object = None
    shipped: Shipped | None = None
    problem: str | None = None


@routes.post("", status_code=202)
async def place(order: Order, client: AnyClient, response: Response, key: Key = None) -> Accepted:
    """Place an order. A repeated request with the same key changes nothing."""
    handle = await client.submit(fulfil, order, run_id=f"order-{key or uuid4()}")
    response.headers["Location"] = f"/orders/{handle.run_id}"
    return Accepted(id=handle.run_id)


@routes.get("/{order_id}")
async def show(order_id: str, client: AnyClient) -> View:
    """Show the progress of an order, or how it ended."""
    order = client.handle(fulfil, order_id)
    status, progress = await order.status(), await order.published("progress")
    view = View(id=order_id, status=status, progress=progress)
    if status in (RunStatus.COMPLETED, RunStatus.FAILED):
        match await end_of(order):
            case Shipped() as shipped:
                view.shipped = shipped
            case problem:
                view.problem = problem
    return view


async def end_of(order: Handle[Refusal, Shipped]) -> Shipped | str:
    """Return what was shipped, or a reason that customers may see."""
    try:
        result = await order.result()
    except Exception:
        # A defect of the workflow, which the worker has logged.
        return "an internal error"
    if is_successful(result):
        return result.unwrap()
    problem = result.failure()
    if isinstance(problem, CheckpointError):
        return "an internal error"
    return f"{type(problem).__name__}: {problem}"


@routes.post("/{order_id}/approval", status_code=202)
async def decide(order_id: str, decision: Decision, client: AnyClient) -> Accepted:
    """Approve or refuse an expensive order. The first decision counts."""
    order = await open_order(order_id, client)
    await order.send(approval, decision, idempotency_key="decision")
    return Accepted(id=order_id)


@routes.delete("/{order_id}", status_code=202)
async def cancel(order_id: str, client: AnyClient) -> Accepted:
    """Cancel an order. Its completed steps are undone."""
    order = await open_order(order_id, client)
    await order.cancel()
    return Accepted(id=order_id)


async def open_order(order_id: str, client: Client) -> Handle[Refusal, Shipped]:
    order = client.handle(fulfil, order_id)
    # A failed run could be resumed, so it would still receive messages.
    if await order.status() is RunStatus.FAILED:
        raise HTTPException(409, "the order has failed")
    return order


# The library's messages belong in the log: they name other runs and commands.
ANSWERS: dict[type[Exception], tuple[int, str]] = {
    RunNotFound: (404, "there is no such order"),
    RunEnded: (409, "the order has ended"),
    RunConflict: (409, "this Idempotency-Key belongs to another order"),
    SaveFailed: (503, "try again later"),
    StoreUnavailable: (503, "try again later"),
}


def answer(request: Request, error: Exception) -> JSONResponse:
    code, detail = ANSWERS[type(error)]
    return JSONResponse({"detail": detail}, code)


def create_api(app: App[Shop], *, clock: Clock | None = None) -> FastAPI:
    """Return the service, with a worker that runs as long as it does."""

    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
        async with Worker(app, clock=clock) as worker:
            api.state.client = worker.client
            yield

    api = FastAPI(title="Shop", lifespan=lifespan)
    api.include_router(routes)
    for error in ANSWERS:
        api.add_exception_handler(error, answer)
    return api


def open_shop(checkpoints: Checkpoints) -> Shop:
    seconds: dict[str, float] = json.loads(os.environ.get("SHOP_SECONDS", "{}"))
    ledger = SqliteLedger(Path(os.environ.get("SHOP_LEDGER", "ledger.db")), seconds)
    return Shop(checkpoints, LedgerBank(ledger), LedgerWarehouse(ledger))


store = open_store(os.environ.get("SHOP_STORE", "sqlite:///orders.db"))
app = App([fulfil], environment=open_shop, checkpoints=Checkpoints(store))
api = create_api(app)
