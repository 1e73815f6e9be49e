"""A shop whose orders survive crashes, deployments and people who take their time.

    cd examples && uvicorn shop.service:api

- `orders.py`: the workflow that processes an order.
- `partners.py`: the bank and the warehouse, simulated with a file.
- `service.py`: the HTTP service.
- `test_orders.py`: how to test it.

docs/services.md explains it step by step.
"""
