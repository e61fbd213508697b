import asyncio

from wicketgate import Authority, Call, Runner


async def main() -> None:
    async with Runner() as runner:
        done = await runner.run(Call(bash="echo hello", timeout=60))  # what the model wrote is the call, nothing else
        print(done.code, done.stdout.decode(), end="")

        async with runner.session(Authority(timeout=600)) as session:  # several calls, one sandbox
            await runner.run_in(session.id, Call(python="open('note', 'w').write('kept')"))
            print((await runner.run_in(session.id, Call(argv=["cat", "note"]))).stdout.decode())

        job = await runner.start_job(Call(bash="seq 3"), name="count")  # in the background
        print((await runner.wait_job(job.id, seconds=60)).code)

        terminal = await runner.open_terminal()
        print((await runner.run_in_terminal(terminal.id, "echo $((6 * 7))")).output.strip())
        await runner.close_terminal(terminal.id)


asyncio.run(main())
