# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer publishes what it trains: Trainer(…, callbacks=[PublishCallback("my-model")]). Copy it into your code.

To go on where a run was broken off, with the same batches and bits, give it a repository:

    callback = PublishCallback("my-model", repository=freshet.Repository("runs/"))
    trainer = Trainer(…, callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.checkpoint("resumed/"))
"""
import dataclasses
import json
import os

import transformers

import freshet
import freshet.torch


class PublishCallback(transformers.TrainerCallback):
    """Publishes every so many optimizer steps, and at the end. In a run of several ranks only rank 0 has a publisher.
    `repository` stores each version, with the optimizer, the learning rates' schedule and the random state."""

    def __init__(self, name, every=100, repository=None):
        self.name, self.every, self.repository = name, every, repository
        self.publisher = self.sink = self.resumed = None
        self.published = 0

    def checkpoint(self, folder):
        """A folder that the Trainer resumes from, made of the newest version; None: there is none, and training begins anew."""
        if self.name not in self.repository.models():
            return None
        self.resumed = self.repository.resume(self.name)
        os.makedirs(folder, exist_ok=True)
        freshet.to_state_dict(os.path.join(folder, "model.safetensors"), self.resumed.weights)
        aside = os.path.join(folder, f"trainer_state.json.{os.getpid()}")  # Another rank may read it just now.
        with open(aside, "w", encoding="utf-8") as file:
            file.write(self.repository.tags(str(self.resumed.version))["trainer_state"])
        os.replace(aside, os.path.join(folder, "trainer_state.json"))
        return folder

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and self.publisher is None:  # A second train() goes on with the first one's.
            resume = (self.repository, str(self.resumed.version)) if self.resumed is not None else None
            self.publisher = freshet.Publisher(self.name, resume=resume)
            self.sink = self.repository.sink(self.name) if self.repository is not None else None

    def go_on(self, model, optimizer, lr_scheduler):
        if self.resumed is not None:
            freshet.torch.resume(self.resumed, model, getattr(optimizer, "optimizer", optimizer), scheduler=lr_scheduler)
            self.resumed = None

    def on_epoch_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        if state.epoch is not None and state.epoch == int(state.epoch):
            self.go_on(model, optimizer, lr_scheduler)

    def on_step_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        self.go_on(model, optimizer, lr_scheduler)  # In an epoch: the Trainer has passed over the batches that were trained on.

    def on_step_end(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **kwargs):
        if state.global_step % self.every == 0 or state.global_step >= state.max_steps:
            how = {"metrics": {"loss": state.log_history[-1]["loss"]} if state.log_history and "loss" in state.log_history[-1] else {}}
            if self.repository is not None:
                told = {**dataclasses.asdict(state), "log_history": []}
                how.update(optimizer=getattr(optimizer, "optimizer", optimizer), scheduler=lr_scheduler,
                           tags={"trainer_state": json.dumps(told)})
            receipt = freshet.torch.publish(self.publisher, model, step=state.global_step, **how)
            self.published = receipt and receipt.version or self.published

    def on_train_end(self, args, state, control, **kwargs):
        self.wait_until_stored()

    def wait_until_stored(self):
        if self.sink is not None and self.published:
            self.sink.wait_for(self.published, timeout=600)

    def close(self):
        """After train(), when servers that come late need the model no more."""
        self.wait_until_stored()
        for each in (self.sink, self.publisher):
            if each is not None:
                each.close()
        self.publisher = self.sink = None
