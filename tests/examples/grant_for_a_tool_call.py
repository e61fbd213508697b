import asyncio

import wicketgate


async def main() -> None:
    async with wicketgate.Broker() as broker:
        grant = await broker.issue(allow=["api.example.com:443"], call="call-42", ttl=300)
        print(grant.id)  # for the runner: `wicketgate run --grant ID -- COMMAND`
        grant = await broker.revoke(grant.id)  # when the call is over; what is open is cut
        print(grant.usage.requests, "requests")


asyncio.run(main())
