"""Learns CartPole by stable-baselines3's PPO."""

import sys

import gymnasium as gym
from stable_baselines3 import PPO

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
env = gym.make("CartPole-v1")
model = PPO("MlpPolicy", env, verbose=1, device="cpu")
model.learn(total_timesteps=2048 * epochs)
