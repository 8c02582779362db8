"""Trains with a DataLoader of two workers (fork or spawn), and forks and starts processes that record spans: children.py START"""

import multiprocessing
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import trnprof


class Numbers(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        with trnprof.span("decode"):
            return torch.full((8,), float(index)), index % 2


def counted(name):
    with trnprof.span(name):
        trnprof.counter("children", 1.0)


def main(start):
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Numbers(), 8, num_workers=2, multiprocessing_context=start)
    for x, y in loader:
        nn.CrossEntropyLoss()(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    child = multiprocessing.get_context(start).Process(target=counted, args=("in a process",))
    child.start()
    child.join()
    assert child.exitcode == 0
    idle = os.fork()
    if idle == 0:
        os._exit(0)
    forked = os.fork()
    if forked == 0:
        counted("in a fork")
        if os.fork() == 0:
            counted("in a fork of a fork")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        os._exit(0)
    for process in (idle, forked):
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "pass"])
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0


if __name__ == "__main__":
    main(sys.argv[1])
