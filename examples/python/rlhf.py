#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning in one file: a trainer, and rollout processes that answer with the newest policy while it trains.

    python rlhf.py                  # ends by itself, in less than a minute, with a line that sums it up

The trainer starts the rollouts. Each rollout answers prompts, and ends with the version that it began with, however many came
meanwhile. Each sample carries that version's number: the trainer drops samples that are too old. Kill a rollout: training goes
on with the others. What is Freshet's is marked.
"""
import argparse
import multiprocessing
from multiprocessing.connection import wait
import sys

import torch

import freshet
import freshet.torch

TOKENS, LENGTH = 8, 6     # Of prompts and answers.
PROMPTS, ANSWERS = 4, 8   # A sample: so many prompts, so many answers to each.
AHEAD = 2                 # So many samples a rollout may be asked for at a time.


class Policy(torch.nn.Module):
    """The next token of an answer, out of the prompt's token at that place and the answer's token before."""

    def __init__(self):
        super().__init__()
        self.prompt, self.before = torch.nn.Embedding(TOKENS, 32), torch.nn.Embedding(TOKENS + 1, 32)
        self.head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, TOKENS))

    def forward(self, prompt, before):
        return torch.distributions.Categorical(logits=self.head(torch.cat([self.prompt(prompt), self.before(before)], -1)))


def reward(prompts, answers):
    """Between 0 and 1: it likes answers that count on from each of the prompt's tokens."""
    return ((prompts + 1) % TOKENS == answers).float().mean(-1)


def before(answers):
    """What stood before each token of the answers; a mark before the first."""
    return torch.cat([torch.full_like(answers[:, :1], TOKENS), answers[:, :-1]], 1)


def rollout(model, number, pipe):
    """The process of a rollout: for each message of the trainer's one sample; None ends it, and so does the trainer's end."""
    torch.set_num_threads(1)
    torch.manual_seed(100 + number)
    policy = Policy()
    with freshet.Subscriber(model, label=f"rollout {number}") as subscriber:                 # Freshet
        served = freshet.torch.attach(policy, subscriber)                                    # Freshet
        subscriber.wait_for(timeout=60)                                                      # Freshet
        try:
            while pipe.recv() is not None:
                prompts = torch.randint(TOKENS, (PROMPTS, LENGTH)).repeat_interleave(ANSWERS, 0)
                answers = torch.full((len(prompts), LENGTH + 1), TOKENS)
                chances = torch.empty(len(prompts), LENGTH)
                with served.hold() as version, torch.no_grad():  # Freshet: all tokens of this sample are of one version.
                    for place in range(LENGTH):
                        tokens = policy(prompts[:, place], answers[:, place])
                        answers[:, place + 1] = tokens.sample()
                        chances[:, place] = tokens.log_prob(answers[:, place + 1])
                overtaken = subscriber.version > version                                     # Freshet
                small = [part.to(torch.uint8).numpy() for part in (prompts, answers[:, 1:])]
                pipe.send((version, overtaken, *small, chances.numpy()))  # Under 4 KiB: written whole, or not at all.
        except (EOFError, OSError):
            pass


def improve(policy, optimizer, samples):
    """One step: what did better than the other answers to its prompt gets likelier. A sample of an older version counts by how
    likely the policy of now would give it, within bounds."""
    prompts, answers, chances = (torch.cat(part) for part in zip(*samples))
    rewards = reward(prompts, answers).view(-1, ANSWERS)
    advantage = ((rewards - rewards.mean(1, True)) / (rewards.std(1, keepdim=True) + 1e-3)).view(-1, 1)
    ratio = (policy(prompts, before(answers)).log_prob(answers) - chances).exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return rewards.mean().item()


class Rollouts:
    """The processes, and what they are asked for. One that ends is not asked any more."""

    def __init__(self, model, count):
        context = multiprocessing.get_context("spawn")
        self.processes = {}
        for number in range(1, count + 1):
            ours, theirs = context.Pipe()
            process = context.Process(target=rollout, args=(model, number, theirs), name=f"rollout {number}", daemon=True)
            process.start()
            theirs.close()  # Its end is then the end of what can be read.
            self.processes[ours] = process
            print(f"{process.name} is process {process.pid}", flush=True)
        self.started, self.alive = count, set(self.processes)
        for pipe in list(self.alive):
            for _ in range(AHEAD):
                self._ask(pipe)

    def samples(self):
        """One after the other, as they come; each is asked for anew at once. Ends when no process is left."""
        while self.alive:
            for pipe in wait(list(self.alive)):
                try:
                    sample = pipe.recv()
                except (EOFError, OSError):
                    self._lose(pipe)
                    continue
                self._ask(pipe)
                yield sample

    def _ask(self, pipe):
        try:
            pipe.send("go on")
        except OSError:
            self._lose(pipe)

    def _lose(self, pipe):
        if pipe in self.alive:
            self.alive.remove(pipe)
            print(f"{self.processes[pipe].name} is gone; {len(self.alive)} left", flush=True)

    def close(self):
        for pipe in self.processes:
            pipe.close()  # Its process ends when it would write or read again.
        for process in self.processes.values():
            process.join(10)
            process.kill()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="policy")
    arguments.add_argument("--versions", type=int, default=80, help="so many are published after the first one")
    arguments.add_argument("--rollouts", type=int, default=2)
    arguments.add_argument("--max-staleness", type=int, default=4, metavar="K", help="a sample is used if it is at most K versions old")
    options = arguments.parse_args()
    if options.versions < 1 or options.rollouts < 1:
        arguments.error("--versions and --rollouts are at least 1")

    torch.set_num_threads(1)
    torch.manual_seed(1)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    rewards, used, ages, dropped, overtaken = [], 0, [], 0, 0
    with freshet.Publisher(options.model) as publisher:                                      # Freshet
        newest = freshet.torch.publish(publisher, policy).version                            # Freshet
        rollouts = Rollouts(options.model, options.rollouts)
        batch = []
        for version, was_overtaken, *sample in rollouts.samples():
            overtaken += was_overtaken
            if newest - version > options.max_staleness:
                dropped += 1
                continue
            ages.append(newest - version)
            prompts, answers, chances = map(torch.from_numpy, sample)
            batch.append((prompts.long(), answers.long(), chances))
            if len(batch) < 4:
                continue
            used += len(batch)
            rewards.append(improve(policy, optimizer, batch))
            batch = []
            receipt = freshet.torch.publish(publisher, policy, step=len(rewards), metrics={"reward": rewards[-1]})  # Freshet
            newest = receipt.version or newest  # None: no room was left, and the next one takes the changes along.
            if len(rewards) % 10 == 0:
                print(f"step {len(rewards)}: reward {rewards[-1]:.3f}, version {newest}", flush=True)
            if len(rewards) == options.versions:
                break
        left = len(rollouts.alive)
        rollouts.close()
    if len(rewards) < options.versions:
        sys.exit(f"no rollout is left: training ended after {len(rewards)} of {options.versions} steps, with version {newest}")
    print(f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f}; versions {len(rewards)}; samples used {used}, dropped {dropped}; staleness "
          f"{sum(ages) / len(ages):.2f} versions, at most {max(ages)}; rollouts overtaken {overtaken}; processes left {left} of "
          f"{rollouts.started}", flush=True)


if __name__ == "__main__":
    main()
